"""The device and the process that a recording comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

HOST = 99_999
"""The number of torch's host allocator, whose pinned memory is recorded like a device's."""


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
    local_rank: int = -1
    """The number of this process on its host; −1 where unknown."""
    launcher: str = ""
    """What named the rank: ``torchrun``, ``slurm``, ``mpi``, …; '' for a process on its own."""
    job: str = ""
    """The launcher's id of the job, which all its processes share."""
    restarts: int = 0
    """How often the launcher restarted the job's processes before this one."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """The coordinates of this rank, by dimension: ``data``, ``tensor``, ``pipeline``, ``expert``."""
    total_steps: int = 0
    """The number of steps that the program says it will record; 0 where it does not say."""
    tags: str = ""
    """The user's own words for the run, separated by single spaces."""
    dry_run: str = ""
    """The options of ``vramscope predict`` beside the card that made it, such as ``--ranks 2``."""
