"""The wheel and environments with it, made once, and a file for them to read."""

import pickle
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from environments import build_wheel, environment  # noqa: E402

MIB = 2**20


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """Built from a source distribution, of a copy of the tree."""
    return build_wheel(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def bare(wheel, tmp_path_factory) -> Path:
    """The wheel alone."""
    return environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="session")
def full(wheel, tmp_path_factory) -> Path:
    """The wheel with its dashboard."""
    return environment(tmp_path_factory.mktemp("full"), f"{wheel}[dashboard]")


@pytest.fixture
def snapshot(tmp_path) -> Path:
    """What torch.cuda.memory._dump_snapshot writes: two tensors of 1 MiB, one freed."""
    base = 0x7F0000000000
    frames = [{"name": "forward", "filename": "/home/me/train.py", "line": 7}]

    def event(action: str, address: int, size: int) -> dict:
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}

    def block(address: int, size: int, state: str) -> dict:
        return {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": state,
            "frames": frames,
        }

    segment = {
        "device": 0,
        "address": base,
        "total_size": 20 * MIB,
        "allocated_size": 2 * MIB,
        "active_size": 2 * MIB,
        "requested_size": 2 * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [
            block(base, 2 * MIB, "active_allocated"),
            block(base + 2 * MIB, 18 * MIB, "inactive"),
        ],
    }
    trace = [
        event("segment_alloc", base, 20 * MIB),
        event("alloc", base, 2 * MIB),
        event("alloc", base + 2 * MIB, 3 * MIB),
        event("free_requested", base + 2 * MIB, 3 * MIB),
        event("free_completed", base + 2 * MIB, 3 * MIB),
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    return path
