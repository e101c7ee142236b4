"""A recording that is not whole says so: checksums, row counts, the name and trace each file bears."""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from vramscope.errors import StoreError
from vramscope.model.device import Process
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks, Note
from vramscope.model.recording import Outcome, Run
from vramscope.model.snapshot import Blocks, BlockState, Segments, Snapshot
from vramscope.model.trace import Trace
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

OLDER = Path(__file__).parents[2] / "samples" / "without-checksums"
"""Recorded before files had checksums."""
STREAMS = ["events-0", "marks-0", "labels-0", "holders-0", "states-0", "pools-0", "stacks", "notes"]


def fill(writer: Writer, n_batches: int = 3) -> None:
    for i in range(n_batches):
        writer.stacks([(0, f"f{i}", "x.py", i)])
        writer.pools([(0, n) for n in range(i + 1)], 0)
        writer.append(Trace.of(action=[0, 1], size=[512, 512], block_size=[512, 512], address=[i, i]), 0)
        writer.append(Marks.of(kind=[5], event=[2 * i]), 0)
        writer.append(Labels.of(event=[2 * i], address=[i]), 0)
        writer.append(Holders.of_paths([(2 * i, i, [("local", "kept", "main", "x.py", i)])]), 0)
        free = Blocks.of(size=[1 << 20], state=[BlockState.INACTIVE])
        writer.state(Snapshot(0, 0, Segments.of(size=[1 << 20]), free), 0, reported=False)
        writer.note(Note("gap", f"note {i}", i))


Ends = Callable[[Path], list[int]]


@pytest.fixture
def closed(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    writer = new_writer()
    fill(writer)
    writer.close(Outcome.FINISHED)
    return run_dir / "rank0"


@pytest.fixture
def killed(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    fill(new_writer(process=Process()))
    return run_dir / "rank0"


def notes(path: Path) -> dict[str, list[str]]:
    """Notes of the run and its recordings: code → texts; the recorder's own notes and the death apart."""
    run: Run = Reader(path).run
    found: dict[str, list[str]] = {}
    for note in (*run.notes, *(note for recording in run.recordings for note in recording.notes)):
        if note.code not in ("gap", "died"):
            found.setdefault(note.code, []).append(note.text)
    return found


def test_a_whole_recording_says_nothing(closed: Path) -> None:
    assert notes(closed) == {}


def test_a_killed_recording_says_nothing_but_that(killed: Path) -> None:
    assert notes(killed) == {}


def test_an_older_recording_says_that_it_carries_no_checksums() -> None:
    assert list(notes(OLDER / "transformer")) == ["no_checksums"]


@pytest.mark.parametrize("stream", STREAMS)
def test_the_trailer_is_a_crc_of_the_message_and_of_the_one_before(
    closed: Path, stream: str, ends_of_messages: Ends
) -> None:
    """As docs/trace-format.md describes it, computed here from the bytes alone."""
    path = closed / f"{stream}.arrows"
    data, before, numbers = path.read_bytes(), 0, []
    at = ends_of_messages(path)
    for start, end in pairwise(at):
        message = data[start:end]
        (size,) = struct.unpack_from("<i", message, 4)
        mark, crc, number = struct.unpack_from("<4sIQ", message, 8 + size - 16)
        head, body = message[: 8 + size - 16], message[8 + size :]
        before = zlib.crc32(head + struct.pack("<Q", number) + body, before)
        numbers.append(number)

        assert (mark, crc) == (b"vsum", before)
    assert numbers[0] == 0
    assert sorted(numbers[1:]) == numbers[1:]
    manifest = json.loads((closed / "manifest.json").read_text())["files"][path.name]
    assert manifest["crc32"] == before
    assert manifest["rows"] == pa.ipc.open_stream(data).read_all().num_rows
    assert manifest["messages"] == len(numbers) - 1


def test_batches_are_numbered_over_all_files(closed: Path, ends_of_messages: Ends) -> None:
    found = []
    for path in closed.glob("*.arrows"):
        data, at = path.read_bytes(), ends_of_messages(path)
        for start in at[1:-1]:
            (size,) = struct.unpack_from("<i", data, start + 4)
            found.append(struct.unpack_from("<Q", data, start + size)[0])

    assert sorted(found) == list(range(1, 3 * len(STREAMS) + 1))


@pytest.mark.parametrize("stream", STREAMS)
def test_every_flipped_bit_is_noted(closed: Path, stream: str) -> None:
    path = closed / f"{stream}.arrows"
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)

        assert notes(closed).keys() & {"damaged", "truncated"}, at


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_missing_file_is_noted(stream: str, state: str, request: pytest.FixtureRequest) -> None:
    rank = request.getfixturevalue(state)
    (rank / f"{stream}.arrows").unlink()
    found = notes(rank)

    if state == "closed":
        (text,) = found["missing_file"]
        assert f"{stream}.arrows is missing, with " in text
    else:
        (text,) = found["missing_batches"]
        # Nobody can know that there was another one after the last that is there.
        n_known = 2 if stream == "notes" else 3
        assert text.startswith(f"{n_known} batches or more that were written are missing")


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_file_cut_between_two_messages_is_noted(
    stream: str, state: str, request: pytest.FixtureRequest, ends_of_messages: Ends
) -> None:
    rank = request.getfixturevalue(state)
    path = rank / f"{stream}.arrows"
    whole, at = path.read_bytes(), ends_of_messages(path)
    # The very last batch of a killed process may be cut off: it then was killed a moment earlier.
    is_last = state == "killed" and stream == "notes"
    for end in at[: -2 if is_last else -1]:
        path.write_bytes(whole[:end])

        assert notes(rank).keys() & {"cut_file", "missing_batches", "missing_file"}, end


@pytest.mark.parametrize("how", ["removed", "doubled", "swapped"])
def test_batches_out_of_place_are_noted(closed: Path, how: str, ends_of_messages: Ends) -> None:
    path = closed / "events-0.arrows"
    data, at = path.read_bytes(), ends_of_messages(path)
    schema, *rows = (data[start:end] for start, end in pairwise(at))
    rows = {"removed": rows[1:], "doubled": [rows[0], *rows], "swapped": [rows[1], rows[0], rows[2]]}[how]
    path.write_bytes(b"".join([schema, *rows]))

    assert "damaged" in notes(closed)


def test_a_file_appended_to_itself_is_not_counted_twice(closed: Path) -> None:
    path = closed / "events-0.arrows"
    path.write_bytes(path.read_bytes() * 2)
    (recording,) = Reader(closed).run.recordings

    assert len(recording.trace) == 6
    assert "damaged" in notes(closed)


def test_swapped_files_are_refused(closed: Path) -> None:
    one, two = closed / "events-0.arrows", closed / "marks-0.arrows"
    one.rename(closed / "x")
    two.rename(one)
    (closed / "x").rename(two)
    (recording,) = Reader(closed).run.recordings

    assert len(recording.trace) == len(recording.marks) == 0
    assert len(notes(closed)["damaged"]) == 2
    assert "another file of this recording ('marks-0.arrows')" in notes(closed)["damaged"][0]


def test_a_file_of_another_recording_is_refused(
    closed: Path, new_writer: Callable[..., Writer], tmp_path: Path
) -> None:
    writer = new_writer(tmp_path / "other", started_ns=1)
    fill(writer, n_batches=2)
    writer.close(Outcome.FINISHED)
    shutil.copyfile(tmp_path / "other" / "rank0" / "events-0.arrows", closed / "events-0.arrows")
    (recording,) = Reader(closed).run.recordings

    assert len(recording.trace) == 0
    assert "it belongs to another recording" in notes(closed)["damaged"][0]


def test_a_file_from_before_checksums_is_no_part_of_a_recording_that_has_them(closed: Path) -> None:
    shutil.copyfile(OLDER / "transformer" / "rank0" / "marks-0.arrows", closed / "marks-0.arrows")

    assert "a message without a checksum" in notes(closed)["damaged"][0]


def test_a_renamed_file_is_refused_on_the_device_whose_name_it_bears(closed: Path) -> None:
    (closed / "events-0.arrows").rename(closed / "events-1.arrows")
    run = Reader(closed).run

    assert [len(recording.trace) for recording in run.recordings] == [0, 0]
    assert {"damaged", "missing_file"} <= notes(closed).keys()


def test_an_edited_manifest_is_noted_and_white_space_is_not(closed: Path) -> None:
    path = closed / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document, indent=7))
    assert notes(closed) == {}

    document["devices"][0]["total_bytes"] += 1
    path.write_text(json.dumps(document))
    assert "rank0/manifest.json differs from what was written" in notes(closed)["damaged"][0]


def test_a_renamed_rank_is_noted(closed: Path) -> None:
    rank = closed.rename(closed.parent / "rank1")

    assert notes(rank.parent)["other_rank"] == ["the directory rank1 holds rank 0: it was renamed or copied"]


def test_a_copied_rank_is_not_counted_twice(closed: Path) -> None:
    shutil.copytree(closed, closed.parent / "rank1")

    assert len(Reader(closed.parent).run.recordings) == 1
    assert "rank1 is a copy of rank0; it is not counted twice" in notes(closed.parent)["rank_unreadable"][0]


def test_ranks_that_were_never_recorded_together_are_noted(
    closed: Path, new_writer: Callable[..., Writer]
) -> None:
    """The first began in 2023 and ends now; the other begins an hour after its end."""
    late = json.loads((closed / "manifest.json").read_text())["ended_ns"] + 3600 * 10**9 + 1
    writer = new_writer(rank=1, world_size=2, started_ns=late)
    writer.append(Trace.of(time_ns=[late + 1]), 0)
    found = notes(closed.parent)["ranks_differ"]

    assert found[0] == "rank0 ended an hour or more before rank1 began: they are not of one run"
    assert "different world sizes (1, 2)" in found[1]


def test_a_reader_follows_a_growing_recording_without_a_word(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    fill(writer)
    reader = Reader(run_dir)
    for _ in range(3):
        writer.close(Outcome.FINISHED)
        reader.refresh()
        assert [n.code for r in reader.run.recordings for n in r.notes if n.code != "gap"] == []
        writer.reopen()
        fill(writer)
        reader.refresh()
        assert [n.code for r in reader.run.recordings for n in r.notes if n.code != "gap"] == []
    (recording,) = reader.run.recordings

    assert len(recording.trace) == 24


def test_an_interrupt_right_after_a_write_breaks_no_checksum(
    run_dir: Path, new_writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes when the batch is whole: what follows goes on from it."""
    from vramscope.store.write.append_file import AppendFile

    writer = new_writer()
    fill(writer)
    append = AppendFile.append

    def interrupted(file: AppendFile, data: object) -> int:
        append(file, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AppendFile, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append(Trace.of(size=[1]), 0)
    fill(writer)
    writer.close(Outcome.FINISHED)
    (recording,) = Reader(run_dir).run.recordings

    assert len(recording.trace) == 13
    assert notes(run_dir) == {}


def test_arrow_itself_reads_every_file(closed: Path) -> None:
    for path in closed.glob("*.arrows"):
        assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 3 * (
            2 if path.name.startswith("events") else 1
        )


def test_a_part_that_is_missing_between_others_is_noted_and_a_far_one_costs_nothing(closed: Path) -> None:
    part = closed / "part999999999"
    part.mkdir()
    shutil.copyfile(closed / "events-0.arrows", part / "events-0.arrows")
    manifest = closed / "manifest.json"
    document = json.loads(manifest.read_text())
    cap = {"max_bytes": 1, "generation": 0, "first_part": 0, "events": {}}
    assert "missing_part" in notes(closed)
    manifest.write_text(json.dumps(document | {"schema": {"major": 2, "minor": 2}, "cap": cap}))

    assert "missing_part" in notes(closed)
    assert len(Reader(closed).run.recordings[0].trace) == 6


def test_a_cap_that_counts_events_nobody_took_is_read(closed: Path) -> None:
    manifest = closed / "manifest.json"
    document = json.loads(manifest.read_text())
    cap = {"max_bytes": 1, "generation": 0, "first_part": 0, "events": {"0": 5}}
    manifest.write_text(json.dumps(document | {"schema": {"major": 2, "minor": 2}, "cap": cap}))
    (recording,) = Reader(closed).run.recordings

    assert len(recording.trace) == 6
    assert recording.step_peaks() is not None
    assert "damaged" in notes(closed)


@pytest.mark.exhaustive
def test_a_flip_in_an_older_schema_is_damage_not_a_traceback(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "transformer", tmp_path / "run")
    path = tmp_path / "run" / "rank0" / "states-0.arrows"
    whole = path.read_bytes()
    for bit in range(0, 8 * 2600, 41):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        for recording in Reader(tmp_path / "run").run.recordings:
            assert len(recording.trace) > 0


def test_a_sparse_file_costs_no_memory(closed: Path) -> None:
    for name in ("events-0.arrows", "stacks.arrows", "states-0.arrows"):
        path = closed / name
        path.unlink()
        with path.open("wb") as file:
            file.truncate(1 << 42)

    assert len(notes(closed)["damaged"]) == 3


def test_a_message_beyond_reason_is_not_read_into_memory(closed: Path) -> None:
    """A sparse file whose first message claims four terabytes: it is not even asked for."""
    batch = pa.RecordBatch.from_pydict({"size": pa.array([1])})
    message = bytearray(batch.serialize().to_pybytes())
    at = message.find(struct.pack("<q", len(message) - 8 - struct.unpack_from("<i", message, 4)[0]))
    struct.pack_into("<q", message, at, 4 << 40)
    path = closed / "events-0.arrows"
    with path.open("wb") as file:
        file.write(message)
        file.truncate(5 << 40)

    assert "claims 4398046511104 bytes" in notes(closed)["damaged"][0]


NO_FILES = ["pipe", "device", "loop", "directory"]


def put_no_file_at(path: Path, how: str) -> None:
    path.unlink()
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path.name),
        "directory": path.mkdir,
    }[how]()


@pytest.mark.parametrize("how", NO_FILES)
def test_what_is_no_file_is_missing(closed: Path, how: str) -> None:
    put_no_file_at(closed / "labels-0.arrows", how)

    assert "missing_file" in notes(closed)


@pytest.mark.parametrize("how", NO_FILES)
def test_a_manifest_that_is_no_file_is_no_run(closed: Path, how: str) -> None:
    put_no_file_at(closed / "manifest.json", how)

    with pytest.raises(StoreError):
        Reader(closed)
