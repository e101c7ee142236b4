"""Files of a newer minor, or of another writer, are read as far as they are understood."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Outcome, Recording
from vramscope.store.reader import Reader
from vramscope.store.writer import Writer


@pytest.fixture
def rank_dir(run_dir: Path, new_writer: Callable[..., Writer]) -> Path:
    """Of a run that ended well and has no streams."""
    new_writer().close(Outcome.FINISHED)
    return run_dir / "rank0"


def write(path: Path, columns: dict[str, pa.Array], compression: str | None = None) -> None:
    """With Arrow's own writer, end-of-stream marker included."""
    batch = pa.RecordBatch.from_pydict(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with path.open("wb") as file, pa.ipc.new_stream(file, batch.schema, options=options) as stream:
        stream.write_batch(batch)


def only(rank_dir: Path) -> Recording:
    (recording,) = Reader(rank_dir).run.recordings
    return recording


def codes(recording: Recording) -> list[str]:
    return [note.code for note in recording.notes]


def test_unknown_columns_and_files_are_ignored(rank_dir: Path) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array([1, 2]), "colour": pa.array(["red", "blue"])})
    write(rank_dir / "future-0.arrows", {"x": pa.array([1])})
    (rank_dir / "events-0.txt").write_text("?")
    recording = only(rank_dir)

    assert recording.trace.size.tolist() == [1, 2]
    assert codes(recording) == []


def test_missing_columns_are_zeros_and_empty_names(rank_dir: Path) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array([1, 2])})
    write(rank_dir / "marks-0.arrows", {"event": pa.array([1])})
    recording = only(rank_dir)

    assert recording.trace.address.tolist() == [0, 0]
    assert [recording.marks.names[index] for index in recording.marks.name] == [""]


def test_marks_beyond_the_last_event_tell_that_events_are_gone(rank_dir: Path) -> None:
    write(rank_dir / "events-0.arrows", {"size": pa.array([1, 2])})
    write(rank_dir / "marks-0.arrows", {"event": pa.array([1, 2])})
    whole = only(rank_dir)
    write(rank_dir / "marks-0.arrows", {"event": pa.array([1, 7])})
    torn = only(rank_dir)

    assert "missing_events" not in codes(whole)
    assert [(note.code, note.value) for note in torn.notes] == [("missing_events", 5)]


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


def test_batches_behind_an_end_marker_are_read(rank_dir: Path) -> None:
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


def test_several_states_in_one_batch_are_told_apart(rank_dir: Path) -> None:
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
