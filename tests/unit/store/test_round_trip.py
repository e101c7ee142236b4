"""What is written is read: every column of every table, however it was cut into batches."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Note, Phase
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import Frame, StackBuilder, Stacks
from vramscope.model.table import Table
from vramscope.model.trace import Trace
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

N_EVENTS = 50
N_STACKS = 9
POOLS = ((0, 0), (0, 1), (2**63, 0))

BOUNDS = {
    "stack_id": (0, N_STACKS - 1),
    "pool": (0, len(POOLS) - 1),
    "event": (0, N_EVENTS),
    "kind": (0, max(MarkKind)),
    "phase": (0, max(Phase)),
    "category": (0, max(Category)),
    "action": (0, 255),
    "state": (0, 2),
    "segment": (0, 0),
}


def columns(table: type[Table], n_rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Random values over the whole range of each dtype, as far as the column's meaning allows."""
    found = {}
    for name, dtype in table.DTYPES.items():
        whole = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        low, high = BOUNDS.get(name, whole)
        kind = "u1" if dtype == "?" else dtype
        found[name] = random.integers(low, high, n_rows, kind, endpoint=True).astype(dtype)
    return found


def named(table: type[Table], n_rows: int, random: np.random.Generator) -> Any:
    names = ("", "Linear", "ünï↯", "", "a\nb\0c")
    found = columns(table, n_rows, random) | {"name": random.integers(0, len(names), n_rows).astype("i4")}
    return table(**found, names=names)  # type: ignore[call-arg]


def words(table: Any) -> list[str]:
    return [table.names[index] for index in table.name]


def stacks_in(stacks: Stacks) -> list[tuple[Frame, ...]]:
    return [stacks.frames(stack_id) for stack_id in range(len(stacks))]


def assert_same(found: Any, expected: Any) -> None:
    for field in fields(expected):
        if field.name not in ("name", "names"):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))
            assert getattr(found, field.name).dtype == getattr(expected, field.name).dtype
    if hasattr(expected, "names"):
        assert words(found) == words(expected)


def write_in_pieces(writer: Writer, table: Table, cuts: list[int]) -> None:
    for start, end in zip([0, *cuts], [*cuts, len(table)], strict=True):
        writer.append(table.rows(slice(start, end)), 0)


def writer_into(directory: str) -> Writer:
    return Writer(Path(directory) / "run", source="cuda", process=Process(), devices=[Device()], started_ns=1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, N_EVENTS), max_size=4).map(sorted))
def test_every_column_comes_back_as_written(seed: int, cuts: list[int]) -> None:
    random = np.random.default_rng(seed)
    trace = Trace(**columns(Trace, N_EVENTS, random))
    marks, labels, read = (
        named(Marks, N_EVENTS, random),
        named(Labels, N_EVENTS, random),
        columns(Counters, N_EVENTS, random),
    )
    tables = [
        marks,
        labels,
        Counters(**(read | {"time_ns": np.sort(read["time_ns"])})),  # a reader sorts by time
    ]
    builder = StackBuilder()
    for i in range(N_STACKS - 1):
        builder.push(int(random.integers(0, i + 1)), f"f{i}", "näme.py", i)
    with TemporaryDirectory() as directory:
        writer = writer_into(directory)
        writer.pools(POOLS, 0)
        writer.stacks(builder.rows())
        for table in (trace, *tables):
            write_in_pieces(writer, table, cuts)
        (recording,) = Reader(Path(directory) / "run").run.recordings

    assert_same(recording.trace, trace)
    for found, expected in zip((recording.marks, recording.labels, recording.counters), tables, strict=True):
        assert_same(found, expected)
    assert stacks_in(recording.stacks) == stacks_in(builder.build())
    assert recording.pools == POOLS
    # Random marks may read as those of several threads.
    assert {"died"} <= {note.code for note in recording.notes} <= {"died", "several_threads"}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), n_segments=st.integers(1, 9), n_blocks=st.integers(0, 30))
def test_a_state_comes_back_as_written(seed: int, n_segments: int, n_blocks: int) -> None:
    random = np.random.default_rng(seed)
    segments, blocks = columns(Segments, n_segments, random), columns(Blocks, n_blocks, random)
    state = Snapshot(0, 7, Segments(**segments), Blocks(**blocks))
    with TemporaryDirectory() as directory:
        writer = writer_into(directory)
        writer.pools(POOLS, 0)
        writer.stacks([(0, "f", "x.py", line) for line in range(N_STACKS - 1)])
        writer.state(state, 0, reported=False)
        writer.state(Snapshot(0, 8), 0, reported=True)
        (recording,) = Reader(Path(directory) / "run").run.recordings

    assert_same(recording.initial.segments, state.segments)
    assert_same(recording.initial.blocks, state.blocks)
    assert recording.initial.time_ns == 7
    assert recording.final is not None
    assert (recording.final.time_ns, len(recording.final.segments)) == (8, 0)


def test_the_manifest_comes_back_as_written(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    process = Process(3, 4, "node", 17, "train.py --x 'ü'", "3.12", "2.9.0", "560", {"max_split_size": "1"})
    devices = [Device(1, "cuda", "H100", 80 << 30, "GPU-1")]
    writer = new_writer(process=process, devices=devices, source="cuda")
    writer.append(Trace.of(size=[1]), 1)
    writer.close(Outcome.FAILED, "OutOfMemoryError: no")
    run = Reader(run_dir).run

    assert [(r.process, r.device, r.source) for r in run.recordings] == [(process, devices[0], "cuda")]
    assert (run.outcome, run.error, run.name, run.path) == (
        Outcome.FAILED,
        "OutOfMemoryError: no",
        "run",
        str(run_dir),
    )
    assert run.started_ns < run.ended_ns


def test_notes_are_of_their_device_or_of_all(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer(devices=[Device(0), Device(1)])
    everywhere, here = Note("gap", "3 events are missing", 3), Note("no_clock", "no times", 0)
    writer.note(everywhere)
    writer.note(here, 1)
    writer.close(Outcome.FINISHED)

    assert [r.notes for r in Reader(run_dir).run.recordings] == [(everywhere,), (everywhere, here)]


def test_names_that_are_not_utf8_are_escaped(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer(process=Process(command="train \udcff.py"))
    writer.stacks([(0, "f", "caf\udce9.py", 1)])
    (recording,) = Reader(run_dir).run.recordings

    assert recording.stacks.frame(1).file == "caf\\udce9.py"
    assert recording.process.command == "train \udcff.py"


def test_pools_are_written_once(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer()
    writer.pools([(0, 0)], 0)
    writer.pools([(0, 0), (0, 5)], 0)
    writer.pools([(0, 0), (0, 5)], 0)

    assert Reader(run_dir).run.recordings[0].pools == ((0, 0), (0, 5))


def test_steps_follow_from_the_marks(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=range(10), time_ns=range(10)), 0)
    writer.append(Marks.of(kind=[MarkKind.STEP] * 2, event=[4, 9], time_ns=[4, 9]), 0)

    assert Reader(run_dir).run.recordings[0].steps.end_event.tolist() == [4, 9]


def test_a_reported_state_is_the_end_only_at_the_end(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=[1, 2]), 0)
    writer.state(Snapshot(2, 5), 0, reported=True)
    before = Reader(run_dir).run.recordings[0].final
    writer.append(Trace.of(size=[3]), 0)

    assert before is not None
    assert before.time_ns == 5
    assert Reader(run_dir).run.recordings[0].final is None


@pytest.mark.parametrize("rank_first", [False, True])
def test_ranks_come_in_order_of_number(
    run_dir: Path, new_writer: Callable[..., Writer], rank_first: bool
) -> None:
    for rank in sorted((2, 10, 0), reverse=rank_first):
        new_writer(rank=rank, world_size=4).close(Outcome.FINISHED)
    run = Reader(run_dir).run

    assert list(run.ranks) == [0, 2, 10]
    assert [note.code for note in run.notes] == ["ranks_missing"]


def test_a_rank_can_be_opened_alone(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    for rank in (0, 1):
        new_writer(rank=rank, world_size=2).close(Outcome.FINISHED)
    run = Reader(run_dir / "rank1").run

    assert (run.name, list(run.ranks), run.notes) == ("run/rank1", [1], ())


WITHOUT_PANDAS = """
import sys
from pathlib import Path
from vramscope.model.device import Device, Process
from vramscope.model.marks import Labels, Marks, Note
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Trace
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

path = Path(sys.argv[1])
writer = Writer(path, source="cuda", process=Process(), devices=[Device()], started_ns=1)
writer.stacks([(0, "f", "x.py", 1)])
writer.pools([(0, 0)], 0)
writer.append(Trace.of(size=[1]), 0)
writer.append(Marks.of(name=[1], names=("", "x")), 0)
writer.append(Labels.of(name=[1], names=("", "x")), 0)
writer.state(Snapshot(0, 0, Segments.of(size=[1]), Blocks.of(size=[1])), 0, reported=False)
writer.note(Note("gap", "x"))
writer.close(Outcome.FINISHED)
assert len(Reader(path).run.recordings[0].initial.blocks) == 1
print(sorted({"pandas", "torch", "rich"} & sys.modules.keys()))
"""


def test_writing_and_reading_load_no_heavy_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, tmp_path / "run"], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
