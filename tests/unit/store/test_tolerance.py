"""Files of a newer minor, or of another writer, are read as far as they are understood."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from vramscope.model.marks import Category, MarkKind, Note, Phase
from vramscope.model.recording import Outcome, Recording
from vramscope.store.read.reader import Reader
from vramscope.store.schema import ADDED_LATER, SCHEMAS
from vramscope.store.write.writer import Writer


@pytest.fixture
def rank_dir(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    """Holds the manifest of a run that ended well, by a writer from before checksums, and no streams."""
    new_writer().close(Outcome.FINISHED)
    path = run_dir / "rank0" / "manifest.json"
    document = json.loads(path.read_text())
    later = ("id", "files", "crc32")
    older = {key: value for key, value in document.items() if key not in later}
    path.write_text(json.dumps(older | {"schema": {"major": 1, "minor": 2}}))
    return path.parent


def write(path: Path, columns: dict[str, pa.Array], compression: str | None = None) -> None:
    """A file by Arrow's own writer, with its end-of-stream marker; columns that every file has are added."""
    stream = path.name.partition("-")[0]
    n_rows = len(next(iter(columns.values())))
    for field in SCHEMAS.get(stream, ()):
        if field.name not in columns and field.name not in ADDED_LATER.get(stream, ()):
            columns = columns | {field.name: pa.array([field_default(field.type)] * n_rows, field.type)}
    batch = pa.RecordBatch.from_pydict(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with path.open("wb") as file, pa.ipc.new_stream(file, batch.schema, options=options) as stream:
        stream.write_batch(batch)


def field_default(kind: pa.DataType) -> object:
    return [] if pa.types.is_list(kind) else "" if kind == pa.string() else pa.scalar(0).cast(kind).as_py()


def only(rank_dir: Path) -> Recording:
    (recording,) = Reader(rank_dir).run.recordings
    return recording


def codes(recording: Recording) -> list[str]:
    return [note.code for note in notes(recording)]


def notes(recording: Recording) -> list[Note]:
    """All but that an old recording carries no checksums."""
    return [note for note in recording.notes if note.code != "no_checksums"]


def test_unknown_columns_and_files_are_ignored(rank_dir: Path) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array([1, 2]), "colour": pa.array(["red", "blue"])})
    write(rank_dir / "future-0.arrows", {"x": pa.array([1])})
    (rank_dir / "events-0.txt").write_text("?")
    recording = only(rank_dir)

    assert recording.trace.size.tolist() == [1, 2]
    assert codes(recording) == []


def test_columns_that_came_later_are_zeros_or_unknown(rank_dir: Path) -> None:
    write(rank_dir / "labels-0.arrows", {"address": pa.array([1, 2])})
    write(rank_dir / "samples-0.arrows", {"time_ns": pa.array([1])})
    recording = only(rank_dir)

    assert recording.labels.element_bytes.tolist() == [0, 0]
    assert recording.counters.requested_bytes.tolist() == [-1]
    assert codes(recording) == []


@pytest.mark.parametrize("stream", ["events", "marks", "labels", "samples", "states"])
def test_a_file_of_another_stream_is_refused_by_its_columns(rank_dir: Path, stream: str) -> None:
    pa_columns = {"first": pa.array([1, 2], pa.uint64()), "second": pa.array([3, 4], pa.uint64())}
    write(rank_dir / "pools-0.arrows", pa_columns)
    (rank_dir / "pools-0.arrows").rename(rank_dir / f"{stream}-0.arrows")
    recording = only(rank_dir)

    assert codes(recording) == ["damaged"]
    assert len(recording.trace) == len(recording.marks) == len(recording.labels) == 0


def test_marks_beyond_the_last_event_tell_that_events_are_gone(rank_dir: Path) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array([1, 2])})
    write(rank_dir / "marks-0.arrows", {"event": pa.array([1, 2])})
    whole = only(rank_dir)
    write(rank_dir / "marks-0.arrows", {"event": pa.array([1, 7])})
    torn = only(rank_dir)

    assert "missing_events" not in codes(whole)
    assert [(note.code, note.value) for note in notes(torn)] == [("missing_events", 5)]


def test_narrower_numbers_large_strings_and_nulls_are_converted(rank_dir: Path) -> None:
    write(
        rank_dir / "marks-0.arrows",
        {"value": pa.array([7, None], pa.int16()), "name": pa.array(["x", None], pa.large_string())},
    )
    marks = only(rank_dir).marks

    assert marks.value.tolist() == [7, 0]
    assert [marks.names[index] for index in marks.name] == ["x", ""]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_are_read(rank_dir: Path, compression: str) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array(range(10_000))}, compression)

    assert only(rank_dir).trace.size.tolist() == list(range(10_000))


def test_batches_after_an_end_marker_are_read(rank_dir: Path) -> None:
    path = rank_dir / "events-0.arrows"
    write(path, {"size": pa.array([1])})
    first = path.read_bytes()
    write(path, {"size": pa.array([2])})
    path.write_bytes(first + path.read_bytes())

    assert only(rank_dir).trace.size.tolist() == [1, 2]


def test_unknown_words_become_the_nearest_known(rank_dir: Path) -> None:
    write(
        rank_dir / "marks-0.arrows", {"kind": pa.array([99], pa.uint8()), "phase": pa.array([99], pa.uint8())}
    )
    write(rank_dir / "labels-0.arrows", {"category": pa.array([99], pa.uint8())})
    recording = only(rank_dir)

    assert (recording.marks.kind[0], recording.marks.phase[0]) == (MarkKind.MARK, Phase.OTHER)
    assert recording.labels.category[0] == Category.UNKNOWN


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["no number"]),
        pa.array([2**63], pa.uint64()),
        pa.array([[1]]),
        pa.array([1.5]),
        pa.array(["a"]).dictionary_encode(),
    ],
)
def test_a_column_of_another_meaning_is_damage(rank_dir: Path, column: pa.Array) -> None:
    write(rank_dir / "events-0.arrows", {"size": column})
    recording = only(rank_dir)

    assert len(recording.trace) == 0
    assert codes(recording) == ["damaged"]


def test_a_block_without_its_segment_is_damage(rank_dir: Path) -> None:
    segments = pa.array([[{"address": 1}]])
    write(
        rank_dir / "states-0.arrows",
        {"event": pa.array([0]), "segments": segments, "blocks": pa.array([[{"segment": 5}]])},
    )
    recording = only(rank_dir)

    assert len(recording.initial.blocks) == 0
    assert codes(recording) == ["damaged"]


def test_several_states_in_one_batch_are_distinguished(rank_dir: Path) -> None:
    segments = pa.array([[{"address": 1}], [{"address": 2}, {"address": 3}]])
    blocks = pa.array([[], [{"segment": 1}]], pa.list_(pa.struct({"segment": pa.int32()})))
    columns = {
        "event": pa.array([0, 0]),
        "reported": pa.array([True, False]),
        "segments": segments,
        "blocks": blocks,
    }
    write(rank_dir / "states-0.arrows", columns)
    recording = only(rank_dir)

    assert recording.final is not None
    assert recording.final.segments.address.tolist() == [1]
    assert recording.initial.segments.address.tolist() == [2, 3]
    assert recording.initial.blocks.segment.tolist() == [1]


def test_a_pipe_in_the_place_of_a_file_does_not_block(rank_dir: Path) -> None:
    import os

    os.mkfifo(rank_dir / "events-0.arrows")

    assert len(only(rank_dir).trace) == 0
