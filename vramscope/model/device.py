"""Where it ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One device, as the program numbers it."""

    index: int = 0
    kind: str = "cuda"
    """``cuda``, ``simulated``, or what else a file names; ``unknown`` where it names nothing."""
    name: str = ""
    total_bytes: int = 0
    """Capacity; 0 where unknown or unlimited."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One rank of a job; '' and 0 where unknown."""

    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    command: str = ""
    python: str = ""
    torch: str = ""
    driver: str = ""
    allocator: Mapping[str, str] = field(default_factory=dict)
    """Allocator settings by torch's names, as text (``PYTORCH_CUDA_ALLOC_CONF``, ``max_split_size`` …)."""
