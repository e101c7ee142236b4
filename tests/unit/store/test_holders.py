"""Holders in a trace: as they are written now, and as they were names of labels before 1.4."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from vramscope.model.holders import Holders
from vramscope.model.marks import Labels
from vramscope.model.recording import Recording
from vramscope.model.trace import Trace
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

OLDER = Path(__file__).parents[2] / "samples" / "holders-in-labels"
"""The leak of the GAN as vramscope 0.1 recorded it, in version 1.1 of the format."""
WORDS = (("local", "history", "main", "train.py", 9), ("item", 3, "list"))


def paths(recording: Recording) -> list[tuple[int, int, list[list[object]]]]:
    holders = recording.holders
    first = holders.first_rows().tolist()
    return [
        (
            int(holders.event[row]),
            int(holders.address[row]),
            [list(word) for word in holders.holding(row, end).words],
        )
        for row, end in zip(first, [*first[1:], len(holders)], strict=True)
    ]


def test_an_older_trace_has_the_holders_that_its_labels_name() -> None:
    with pa.OSFile(str(OLDER / "rank0" / "labels-0.arrows")) as file:
        rows = [row for batch in pa.ipc.open_stream(file) for row in batch.to_pylist()]
    named = [row for row in rows if row["name"].startswith("held by: ")]
    (recording,) = Reader(OLDER).run.recordings

    assert len(named) > 50
    assert paths(recording) == [
        (row["event"], row["address"], json.loads(row["name"].removeprefix("held by: "))) for row in named
    ]
    assert len(recording.labels) == len(rows) - len(named)


def test_holders_of_missing_events_are_left_out(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer()
    writer.append(Trace.of(action=[0], size=[512], block_size=[512], address=[512]), 0)
    writer.append(Labels.of(event=[1], address=[512]), 0)
    writer.append(Holders.of_paths([(1, 512, WORDS), (9, 1024, WORDS)]), 0)
    (recording,) = Reader(run_dir).run.recordings

    assert paths(recording) == [(1, 512, [list(word) for word in WORDS])]


def test_a_file_that_begins_within_a_path_gives_whole_paths_only(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    writer.append(Trace.of(action=[0], size=[512], block_size=[512], address=[512]), 0)
    writer.append(Holders.of_paths([(1, 512, WORDS), (1, 512, WORDS)]).rows(slice(1, None)), 0)
    (recording,) = Reader(run_dir).run.recordings

    assert paths(recording) == [(1, 512, [list(word) for word in WORDS])]
