"""Wherever a file is cut or damaged, what is read is a prefix of what was written, and the loss is noted."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vramscope.model.device import Device, Process
from vramscope.model.marks import Labels, Marks, Note
from vramscope.model.recording import Outcome, Recording
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Trace
from vramscope.store.read.rank import RankReader
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

N_BATCHES = 3
ROWS = 3


def write_everything(writer: Writer, n_batches: int = N_BATCHES, rows: int = ROWS) -> None:
    """Row i of each table carries i, and refers to stack i and pool i."""
    for i in range(0, n_batches * rows, rows):
        numbers = np.arange(i, i + rows)
        writer.stacks([(int(n), f"f{n + 1}", "x.py", int(n + 1)) for n in numbers])
        writer.pools([(0, n) for n in range(i + rows)], 0)
        writer.append(Trace.of(size=numbers, stack_id=numbers, pool=numbers, time_ns=10**18 + numbers), 0)
        names = ("", *(f"m{n}" for n in range(i + rows)))
        writer.append(Marks.of(kind=[5] * rows, value=numbers, name=numbers + 1, names=names), 0)
        writer.append(Labels.of(address=numbers, name=numbers + 1, names=names), 0)
        state = Snapshot(0, i + 1, Segments.of(size=[i]), Blocks.of(size=[i]))
        writer.state(state, 0, reported=False)
        writer.note(Note("gap", f"note {i}", i))


def assert_prefix(recording: Recording, n_events: int, rows: int = ROWS) -> None:
    """Every table holds rows 0, 1, …, whole batches of them, as written."""
    trace, marks, labels = recording.trace, recording.marks, recording.labels
    assert len(trace) == n_events
    for table in (trace, marks, labels):
        assert len(table) % rows == 0
    assert trace.size.tolist() == list(range(len(trace)))
    assert marks.value.tolist() == list(range(len(marks)))
    assert labels.address.tolist() == list(range(len(labels)))
    assert [marks.names[n] for n in marks.name] == [f"m{n}" for n in range(len(marks))]
    assert [recording.stacks.frame(n).line for n in range(len(recording.stacks))] == list(
        range(len(recording.stacks))
    )
    assert recording.pools == ((0, 0),) or recording.pools == tuple(
        (0, n) for n in range(len(recording.pools))
    )
    assert recording.initial.segments.size.tolist() == (
        [recording.initial.time_ns - 1] if recording.initial.time_ns else []
    )
    said = [note.value for note in recording.notes if note.code == "gap"]
    assert said == [rows * i for i in range(len(said))]


FILES = [
    "events-0.arrows",
    "marks-0.arrows",
    "labels-0.arrows",
    "states-0.arrows",
    "pools-0.arrows",
    "stacks.arrows",
    "notes.arrows",
]


@pytest.fixture
def complete(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    """A run that ended well."""
    writer = new_writer()
    write_everything(writer)
    writer.close(Outcome.FINISHED)
    return run_dir / "rank0"


def lost_bytes(recording: Recording) -> int:
    return sum(note.value for note in recording.notes if note.code == "truncated")


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_gives_its_whole_batches(
    run_dir: Path,
    new_writer: Callable[..., Writer],
    name: str,
    ends_of_messages: Callable[[Path], list[int]],
) -> None:
    writer = new_writer()
    write_everything(writer, n_batches=2)  # a schema, a whole batch, and one that is cut
    writer.close(Outcome.FINISHED)
    complete = run_dir / "rank0"
    path = complete / name
    n_bytes, ends = path.stat().st_size, ends_of_messages(path)
    for other in set(FILES) - {name}:  # missing files are quick to read
        (complete / other).unlink()
    # Every byte near the end of a message, every fifth within one: what is read depends on whole messages.
    near = {end + by for end in ends for by in range(-16, 17)}
    sizes = sorted(near.intersection(range(n_bytes)) | set(range(0, n_bytes, 5)))
    # From the end on: a file that is written again costs milliseconds, one that becomes shorter none.
    for size in reversed(sizes):
        os.truncate(path, size)
        (recording,) = Reader(complete).run.recordings
        kept = max(end for end in ends if end <= size)

        n_events = max(0, ends.index(kept) - 1) * ROWS if name.startswith("events") else 0
        assert_prefix(recording, n_events)
        assert lost_bytes(recording) == size - kept


def test_a_large_run_cut_at_random_bytes_gives_a_prefix(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    write_everything(writer, n_batches=40, rows=500)
    chance = random.Random(2)
    files = {path: path.read_bytes() for path in (run_dir / "rank0").glob("*.arrows")}
    for _ in range(25):
        for path, whole in files.items():
            path.write_bytes(whole[: chance.randrange(len(whole) + 1)])
        (recording,) = Reader(run_dir).run.recordings

        assert_prefix(recording, len(recording.trace), rows=500)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_an_empty_table(complete: Path, name: str) -> None:
    (complete / name).unlink()
    (recording,) = Reader(complete).run.recordings

    assert_prefix(recording, 0 if name.startswith("events") else N_BATCHES * ROWS)


def test_an_unfinished_batch_of_a_running_trace_is_nothing_to_say(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    write_everything(new_writer())
    path = run_dir / "rank0" / "events-0.arrows"
    path.write_bytes(path.read_bytes()[:-1])
    run = Reader(run_dir).run

    assert run.outcome is Outcome.RUNNING
    assert lost_bytes(run.recordings[0]) == 0


def test_lost_stacks_and_pools_become_unknown_and_are_counted(complete: Path) -> None:
    (complete / "stacks.arrows").unlink()
    (complete / "pools-0.arrows").unlink()
    (recording,) = Reader(complete).run.recordings

    assert not recording.trace.stack_id.any()
    assert not recording.trace.pool.any()
    n_unknown = 2 * (N_BATCHES * ROWS - 1)
    assert [n.value for n in recording.notes if n.code == "unknown_references"] == [n_unknown]


@pytest.mark.parametrize(
    "garbage", [b"\0" * 64, b"garbage!" * 8, b"\xff\xff\xff\xff\x08\0\0\0" + b"\xee" * 64]
)
def test_garbage_is_reported_with_file_and_offset_and_keeps_what_came_before(
    complete: Path, garbage: bytes
) -> None:
    path = complete / "events-0.arrows"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(garbage)
    (recording,) = Reader(complete).run.recordings

    assert_prefix(recording, N_BATCHES * ROWS)
    (note,) = [note for note in recording.notes if note.code == "damaged"]
    assert note.value == len(garbage)
    assert f"rank0/events-0.arrows at byte {size}" in note.text


@pytest.fixture
def half_read(
    run_dir: Path, new_writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Reader]:
    """``half_read(n, is_repaired=…)``: a reader of a run whose last events are zeros at first.

    The manifest is another one after each of its first *n* attempts; the last of them mends the zeros.
    """

    def read(n_attempts: int, *, is_repaired: bool) -> Reader:
        write_everything(new_writer())
        manifest, path = run_dir / "rank0" / "manifest.json", run_dir / "rank0" / "events-0.arrows"
        whole, once, attempts = path.read_bytes(), RankReader._refresh_once, []
        path.write_bytes(whole[:-64] + bytes(64))

        def attempt(reader: RankReader) -> bool:
            changed = once(reader)
            attempts.append(changed)
            if len(attempts) <= n_attempts:
                os.utime(manifest, ns=(len(attempts), len(attempts)))
            if len(attempts) == n_attempts and is_repaired:
                path.write_bytes(whole)
            return changed

        monkeypatch.setattr(RankReader, "_refresh_once", attempt)
        return Reader(run_dir)

    return read


@pytest.mark.parametrize("n_attempts", [1, 8, 21])
def test_what_is_read_while_the_files_change_is_no_damage(
    half_read: Callable[..., Reader], n_attempts: int
) -> None:
    reader = half_read(n_attempts, is_repaired=True)
    early = [note.code for note in reader.run.recordings[0].notes]
    reader.refresh()
    (recording,) = reader.run.recordings

    assert early == ["gap"] * N_BATCHES
    assert [note.code for note in recording.notes] == early
    assert_prefix(recording, N_BATCHES * ROWS)


def test_damage_of_files_that_change_is_shown_once_they_rest(half_read: Callable[..., Reader]) -> None:
    reader = half_read(21, is_repaired=False)
    early = [note.code for note in reader.run.recordings[0].notes]
    has_news = reader.refresh()

    assert early == ["gap"] * N_BATCHES
    assert has_news
    assert [note.code for note in reader.run.recordings[0].notes] == [*early, "damaged"]
    assert not reader.refresh()


def test_flipped_bytes_never_crash_nor_move_a_row(complete: Path) -> None:
    """Whatever a flip hits, no more rows are read than were written, and stacks end."""
    chance = random.Random(3)
    for name in FILES:
        path = complete / name
        whole = path.read_bytes()
        for _ in range(60):
            broken = bytearray(whole)
            broken[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            path.write_bytes(broken)
            (recording,) = Reader(complete).run.recordings

            assert len(recording.trace) <= N_BATCHES * ROWS
            assert [recording.stacks.frames(n) for n in range(len(recording.stacks))]
        path.write_bytes(whole)


def test_a_stack_that_calls_itself_is_cut(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    new_writer().stacks([(2, "a", "x.py", 1), (1, "b", "x.py", 2)])
    (recording,) = Reader(run_dir).run.recordings

    assert [len(recording.stacks.frames(n)) for n in range(3)] == [0, 1, 2]
    assert "unknown_references" in {note.code for note in recording.notes}


def test_marks_ahead_of_the_events_stand_at_the_end(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer(devices=[Device(0)], process=Process())
    writer.append(Trace.of(size=[1, 2]), 0)
    writer.append(Marks.of(kind=[5, 5], event=[1, 7]), 0)
    writer.append(Labels.of(event=[2, 7], address=[1, 2]), 0)
    (recording,) = Reader(run_dir).run.recordings

    assert recording.marks.event.tolist() == [1, 2]
    assert recording.labels.event.tolist() == [2]
