"""Collectives among ranks, and what FSDP copies around them.

NCCL works in the tensors that it is given; its own buffers lie beside torch's allocator.
"""

from vramscope.prediction.dry.operators import Row

_FUNCTIONAL = "torch/csrc/distributed/c10d/Functional.cpp: the outputs alone"
_FSDP = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"

ROWS = {
    **{
        f"_c10d_functional::{name}": Row(_FUNCTIONAL)
        for name in (
            "all_reduce",
            "all_reduce_",
            "all_gather_into_tensor",
            "reduce_scatter_tensor",
            "all_to_all_single",
            "broadcast",
            "broadcast_",
            "wait_tensor",
        )
    },
    **{f"fsdp::{name}": Row(_FSDP) for name in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")},
}
