"""The device and the process that a recording comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One device, with the index that the program uses."""

    index: int = 0
    kind: str = "cuda"
    """``cuda``, ``simulated``, or another kind that a file names; ``unknown`` where it names none."""
    name: str = ""
    total_bytes: int = 0
    """Capacity of the device; 0 where unknown or unlimited."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One rank of a job; '' and 0 mark unknown values."""

    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    command: str = ""
    python: str = ""
    torch: str = ""
    driver: str = ""
    allocator: Mapping[str, str] = field(default_factory=dict)
    """Allocator settings under torch's names, as text (``PYTORCH_CUDA_ALLOC_CONF``, ``max_split_size`` …)."""
