"""A run in a temporary directory, and a writer into it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from vramscope.model.device import Device, Process
from vramscope.store.write.writer import Writer


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def new_writer(run_dir: Path) -> Callable[..., Writer]:
    """Starts the run of this process at ``run_dir``; arguments override."""

    def start(directory: Path = run_dir, rank: int = 0, world_size: int = 1, **changed: object) -> Writer:
        process = Process(rank=rank, world_size=world_size, host=socket.gethostname(), pid=os.getpid())
        settings = {
            "source": "simulated",
            "process": process,
            "devices": [Device(0, "simulated", "a device", 80 << 30)],
            "started_ns": 1_700_000_000_000_000_000,
        }
        return Writer(directory, **settings | changed)

    return start


@pytest.fixture
def ends_of_messages(module_at: Callable[[Path], ModuleType]) -> Callable[[Path], list[int]]:
    """``ends_of_messages(path)``: 0, and where each message of a stream ends, by Arrow's own reader."""
    damage = module_at(Path(__file__).parents[3] / "benchmarks" / "damage.py")
    return damage.ends_of_messages
