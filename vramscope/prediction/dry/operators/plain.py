"""Operators that take their outputs on CUDA and nothing else: they stand in ``groups.tsv``.

The plain ones were run on many inputs, of several shapes and types, by torch's genuine allocator. NCCL works
in the tensors that it is given; its own buffers lie beside torch's allocator.
"""

from vramscope.prediction.dry.operators import grouped

ROWS = {
    **grouped("plain", "every input that was tried on the genuine allocator"),
    **grouped("functional", "torch/csrc/distributed/c10d/Functional.cpp: the outputs alone"),
    **grouped("fsdp", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"),
}
