"""A run in a temporary directory, and a writer into it."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
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
def ends_of_messages() -> Callable[[Path], list[int]]:
    """``ends_of_messages(path)``: 0, and where each message of a stream ends, by Arrow's own reader."""

    def ends(path: Path) -> list[int]:
        found = [0]
        with pa.OSFile(str(path)) as file:
            while file.tell() < file.size():
                pa.ipc.read_message(file)
                found.append(file.tell())
        return found

    return ends
