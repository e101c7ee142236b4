"""A profiler's timeline: its sums, and its categories as ours."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import captures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.analysis import analyses
from vramscope.errors import FormatError
from vramscope.formats.memory_timeline import read, sniff
from vramscope.loading import load
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

SAMPLE = captures.OTHERS / "timeline_gpu_adam.raw.json.gz"
PARAMETER, OPTIMIZER, INPUT, TEMPORARY, ACTIVATION, GRADIENT, AUTOGRAD, NONE = range(8)

ROWS = [
    [-1, 1, 1000, PARAMETER],
    [-1, 1, 300, NONE],
    [5, 2, 500, ACTIVATION],
    [6, 2, 1000, TEMPORARY],
    [7, 3, -1000, TEMPORARY],
    [7, 3, 1000, GRADIENT],
    [8, 4, -500, ACTIVATION],
    [9, 2, 40, AUTOGRAD],
    [9, 4, -300, NONE],
]


def opened(folder: Path, rows: Any, pack: Any = bytes) -> Recording:
    path = folder / "adam.raw.json"
    data = pack(json.dumps(rows).encode())
    path.write_bytes(data)
    assert sniff(data[: 1 << 16], path)
    run = read(path)
    assert run.name == "adam"
    (recording,) = run.recordings
    return recording


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, b"\xef\xbb\xbf".__add__], ids=["plain", "gzip", "mark"]
)
def test_levels_are_the_sums_of_the_rows(tmp_path, pack):
    recording = opened(tmp_path, ROWS, pack)
    totals = recording.timeline()

    assert totals.allocated_bytes[0] == 1300
    assert recording.peak().allocated.n_bytes == 2800
    assert totals.allocated_bytes[-1] == 2040
    assert recording.trace.time_ns[[0, -1]].tolist() == [5, 9]
    assert {"starts_late", "no_addresses", "no_layout"} == {note.code for note in recording.notes}


def test_categories_are_the_last_that_the_profiler_gave(tmp_path):
    recording = opened(tmp_path, ROWS)

    assert recording.categories().totals == {
        "parameter": 1000,
        "gradient": 1000,
        "activation": 500,
        "unknown": 300,
    }
    assert recording.categories(instant=len(recording.trace)).totals == {
        "parameter": 1000,
        "gradient": 1000,
        "temporary": 40,
    }
    assert recording.labels.names[recording.labels.name[-1]] == "autograd detail"


def test_of_blocks_alike_each_free_ends_another_one(tmp_path):
    rows = [[1, 2, 64, 3], [2, 2, 64, 3], [3, 4, -64, 3], [4, 4, -64, 3]]
    found = opened(tmp_path, rows).lifetimes()

    assert len(set(found.address.tolist())) == 2
    assert sorted(found.free_event.tolist()) == [2, 4]


def test_a_free_of_what_never_came_pre_dates_the_trace(tmp_path):
    recording = opened(tmp_path, [[1, 2, 64, 3], [2, 4, -512, 3]])

    assert recording.timeline().allocated_bytes.tolist() == [512, 576, 64, 64]


def test_every_analysis_answers(tmp_path):
    recording = opened(tmp_path, ROWS)

    for analysis in analyses().values():
        result = analysis.run(recording)
        assert analysis.findings is None or analysis.findings(result) is not None


row = st.tuples(st.integers(0, 5), st.integers(1, 1 << 40), st.integers(0, 7))


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1), st.lists(st.integers(1, 1 << 40)))
def test_any_history_gives_back_its_sums(tmp_path_factory, moves, before):
    live: dict[int, tuple[int, int]] = {}
    total, levels = sum(before), []
    rows = [[-1, 1, size, PARAMETER] for size in before]
    for time_ns, (slot, size, category) in enumerate(moves):
        if slot in live:
            gone, was = live.pop(slot)
            rows.append([time_ns, 4, -gone, was])
            total -= gone
        else:
            live[slot] = size, category
            rows.append([time_ns, 2, size, category])
            total += size
        levels.append(total)
    recording = opened(tmp_path_factory.mktemp("any"), rows)
    totals = recording.timeline().allocated_bytes
    moved = (recording.trace.action == Action.ALLOC) | (recording.trace.action == Action.FREE_REQUESTED)

    assert totals[0] == sum(before)
    assert totals[1:][moved].tolist() == levels


BROKEN = [
    ([ROWS[0], [1, 2, 3]], "row 1 is not"),
    ([ROWS[0], [1, 2, "3", 4]], "row 1 is not"),
    ([ROWS[0], [1, 2, True, 4]], "row 1 is not"),
    ([ROWS[0], {"time": 1}], "row 1 is not"),
    ([ROWS[0], [1, 5, 3, 4]], "row 1 has a number out of range"),
    ([ROWS[0], [1, 2, 3, 8]], "row 1 has a number out of range"),
    ([ROWS[0], [-2, 2, 3, 4]], "row 1 has a number out of range"),
    ([ROWS[0], [1, 2, 1 << 64, 4]], "row 1 has a number out of range"),
    ([[1, 2, 1 << 60, 0], [2, 2, 1 << 60, 0]], "add up to"),
]


@pytest.mark.parametrize(
    ("rows", "words"), BROKEN, ids=[f"{words} {at}" for at, (_, words) in enumerate(BROKEN)]
)
def test_damaged_rows_are_refused_by_their_number(tmp_path, rows, words):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(rows))

    with pytest.raises(FormatError, match=words) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", range(30, 150, 13))
def test_a_timeline_cut_anywhere_is_refused(tmp_path, length):
    path = tmp_path / "x.json"
    path.write_bytes(json.dumps(ROWS).encode()[:length])

    with pytest.raises(FormatError, match="damaged JSON"):
        read(path)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"[[]]", b"[[1, 2], [3, 4]]", b"[[1,9,3,4]]", b"{}", b"[[1.5,2,3,4]]"]
)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x.json"))


def test_a_real_timeline_has_the_sums_of_its_rows_in_all_and_by_category():
    if not SAMPLE.exists():
        pytest.skip("no shared snapshots")
    level, most, by_category = 0, 0, Counter()
    at_most: dict[int, int] = {}
    for _, action, n_bytes, category in json.loads(gzip.decompress(SAMPLE.read_bytes())):
        by_category[category] += n_bytes
        level += n_bytes if action != 3 else 0
        if level > most and action != 3:
            most, at_most = level, dict(by_category)
    (recording,) = load(SAMPLE).recordings
    known = recording.categories().totals

    assert recording.peak().allocated.n_bytes == most
    assert recording.timeline().allocated_bytes[-1] == level
    assert known["parameter"] == at_most[PARAMETER]
    assert known["optimizer_state"] == at_most[OPTIMIZER]
    assert known["gradient"] == at_most[GRADIENT]
    assert known["unknown"] == at_most[NONE]


def test_a_timeline_names_no_device_so_none_is_claimed(tmp_path):
    recording = opened(tmp_path, ROWS)

    assert recording.device.kind == "unknown"
    assert not recording.has_reserved
