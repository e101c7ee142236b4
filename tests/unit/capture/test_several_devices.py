"""Where ranks share a model, each category has the bytes that torch's own objects hold, at every moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from vramscope.loading import load
from vramscope.model.marks import Category, MarkKind
from vramscope.model.recording import Recording

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "programs" / "two_ranks.py"
WAYS = ("ddp", "fsdp2", "fsdp2 kept", "fsdp1", "fsdp1 orig", "tensor parallel", "pipeline")
Recorded: TypeAlias = list[tuple[Recording, list[dict[str, int]]]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("several")
    ranks = []
    for rank in range(2):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}
        command = [sys.executable, "-W", "ignore", str(PROGRAM), str(directory), str(rank)]
        ranks.append(subprocess.Popen(command, env=os.environ | own))
    try:
        assert [process.wait(timeout=200) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    return directory


@pytest.fixture(scope="module", params=WAYS)
def recorded(job: Path, request: pytest.FixtureRequest) -> Recorded:
    recordings = load(job / request.param).recordings
    assert [each.process.rank for each in recordings] == [0, 1]
    return [(each, json.loads((job / f"{request.param}.{rank}.json").read_text()))
            for rank, each in enumerate(recordings)]  # fmt: skip


def test_shards_and_buffers_are_what_torchs_own_objects_hold(recorded: Recorded) -> None:
    for recording, truths in recorded:
        marks = recording.marks.rows(recording.marks.kind == MarkKind.MARK)
        found = [recording.categories(event).totals for event in marks.event.tolist()]
        held = [{name: totals.get(name, 0) for name in truth}
                for totals, truth in zip(found, truths, strict=True)]  # fmt: skip

        for totals, truth in zip(held, truths, strict=True):
            # Gloo's thread holds what DDP sent until it has a turn: its buckets' indices, 512 bytes, and the
            # bucket of the first step, which DDP makes anew for the second.
            sent = truth.get("communication", 0)
            kept = (512, sent, sent + 512) if "gradient" in truth else (512,)
            assert totals in [truth, *(truth | {"communication": sent + more} for more in kept)]


def test_each_byte_is_counted_once_and_known(recorded: Recorded) -> None:
    for recording, _ in recorded:
        known, allocated = recording.categories(), int(recording.timeline().allocated_bytes.max())

        live = known.allocations.rows(known.allocations.allocated_at(known.instant))
        unknown = known.assigned.category[known.allocations.allocated_at(known.instant)] == Category.UNKNOWN
        # What the way before left behind is older than the recording.
        n_unknown = int(live.block_size[unknown & (live.alloc_event >= 0)].sum())

        assert sum(known.totals.values()) == allocated
        assert n_unknown <= 0.02 * allocated
