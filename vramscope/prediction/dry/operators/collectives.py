"""Collectives among ranks, and what FSDP copies around them.

NCCL works in the tensors that it is given; its own buffers lie beside torch's allocator.
"""

from vramscope.prediction.dry.operators import grouped

_FUNCTIONAL = "torch/csrc/distributed/c10d/Functional.cpp: the outputs alone"
_FSDP = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"

ROWS = grouped("functional", _FUNCTIONAL) | grouped("fsdp", _FSDP)
