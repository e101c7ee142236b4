"""What NCCL's communicators hold is NCCL's own figure for all of them, or it is not known.

A double stands for torch's backend: no machine of ours has NCCL with a communicator.
"""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from vramscope.capture.ranks.nccl import total_of
from vramscope.model.counters import UNKNOWN

MIB = 1 << 20
FIRST, BEFORE = (2, 29, 7), (2, 29, 6)


def backend(
    *, total: int = 600, persist: int = 200, suspended: int = 0, built: Any = FIRST, runs: Any = FIRST,
    split_share: int = -(1 << 31),
) -> Any:  # fmt: skip
    def memory_stats() -> dict[str, int]:
        assert min(built, runs) >= FIRST, "an older library ends the process here"
        return {"total": total, "persist": persist, "suspend": 400, "suspended": suspended}

    return SimpleNamespace(
        memory_stats=memory_stats,
        get_build_nccl_version=lambda: built,
        get_runtime_nccl_version=lambda: runs,
        options=SimpleNamespace(config=SimpleNamespace(split_share=split_share)),
    )


def test_it_is_the_sum_of_all_communicators_without_what_is_suspended() -> None:
    assert total_of([backend()]) == 600
    assert total_of([backend(), backend(suspended=1)]) == 600 + 200
    assert total_of([]) == UNKNOWN


@pytest.mark.parametrize(
    "other",
    [
        backend(built=BEFORE),
        backend(runs=BEFORE),
        backend(split_share=1),
        backend(total=601),
        SimpleNamespace(),
        SimpleNamespace(memory_stats=lambda: 1 / 0),
    ],
    ids=["built for an older NCCL", "an older NCCL", "shares buffers", "no sum", "an older torch", "fails"],
)
def test_one_communicator_that_does_not_say_makes_the_sum_unknown(other: Any) -> None:
    assert total_of([backend(), other]) == UNKNOWN


def test_buffers_that_communicators_share_by_the_environment_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1")

    assert total_of([backend(), backend()]) == UNKNOWN


@pytest.mark.standin
def test_torchs_own_group_is_not_asked_before_it_has_a_communicator(run_standin: Any) -> None:
    """Asked, it would guess its device and write so on stderr; so this holds only while nobody asks."""
    found = run_standin(
        "import os\n"
        # The backend that torch 2.15 takes makes its communicator at once, which needs a device.
        "os.environ['TORCH_DIST_USE_NCCL2'] = '0'\n"
        "import torch.distributed as dist\n"
        "from vramscope.capture.ranks import nccl\n"
        "dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)\n"
        "asked = []\n"
        "nccl._held = lambda backend: asked.append(backend) or 0\n"
        "communicators = nccl.CommunicatorBytes(0)\n"
        "communicators.read()\n"
        "own = dist.group.WORLD._get_backend(torch.device('cuda', 0))\n"
        "ask = [getattr(own, f'get_{each}_nccl_version', None) for each in ('build', 'runtime')]\n"
        "versions = [each() for each in ask if each is not None]  # from torch 2.7 on\n"
        "answer = [len(asked), communicators.n_bytes, own.options.config.split_share == 1, versions]\n"
        "dist.destroy_process_group()\n"
    )

    assert found[:3] == [0, UNKNOWN, False]
    assert all(len(version) == 3 for version in found[3])
