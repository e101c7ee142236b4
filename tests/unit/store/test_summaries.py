"""A summary is read back as it was written, or not at all, and never grows beyond its limit."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.marks import Note
from vramscope.model.rank_summary import DeviceSummary, Failure, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.store.summaries import (
    LARGEST_BYTES,
    StoredSummary,
    events_bytes,
    parse_summary,
    read_summary,
    write_summary,
)


def lines(n, length=10):
    return tuple(
        LineBytes(
            1000 * (n - i), i + 1, (Frame("f" * length, f"/net/{i}.py", i), Frame("g", "/t.py", 2)), "mm"
        )
        for i in range(n)
    )


def summary(n_lines=3, n_steps=4, length=10):
    steps = {name: np.arange(n_steps) for name in StepRows.DTYPES} | {"n_steps": np.ones(n_steps)}
    device = DeviceSummary(
        device=Device(1, "cuda", "a card", 80 << 30, "GPU-1"),
        source="cuda",
        n_events=77,
        end={"allocated": 5},
        peak={"allocated": PeakPlace(9, None, 3), "reserved": PeakPlace(10, 2, 4)},
        lines=lines(n_lines, length),
        other_bytes=11,
        retained=lines(2),
        steps=StepRows.of(**steps),
        phases={"forward": 8},
        n_failed=2,
        failure=Failure(3, 4, 5, 6, 7, lines(1)),
        samples={"process_used_bytes": 12},
        notes=(Note("gap", "a gap", 3),),
        findings=(Finding("leak", "warning", "it grows", "/net/0.py", 3, "f", n_bytes=4),),
    )
    process = Process(3, 8, "node7", 12, mesh={"pipeline": 2}, allocator={"a": "b"})
    return RankSummary(process, Outcome.FAILED, "OutOfMemoryError: x", 100, 200, (device,))


def test_what_was_written_is_read(tmp_path: Path, assert_same_device):
    stored = StoredSummary(summary(), "id", is_final=False, events_bytes=5, written_ns=6)
    n_bytes = write_summary(tmp_path / "summary.json", stored)
    found = read_summary(tmp_path / "summary.json")

    assert n_bytes == (tmp_path / "summary.json").stat().st_size
    assert (found.trace, found.is_final, found.events_bytes, found.written_ns) == ("id", False, 5, 6)
    assert replace(found.summary, devices=()) == replace(stored.summary, devices=())
    assert_same_device(found.summary.devices[0], stored.summary.devices[0])


@pytest.mark.parametrize(
    "column",
    [
        [-1],
        [7, 7, 7],
        [0, 512, -512],
        [10**18, 10**18 + 3 * 10**9],
        [0, 127, 0, -128],
        [0, 128, 0],
        [-(2**63), 2**63 - 1, 0, -1],
        np.random.default_rng(5).integers(-(2**62), 2**62, 1000).tolist(),
        (512 * np.random.default_rng(6).integers(0, 1 << 28, 1000)).tolist(),
    ],
)
def test_every_column_of_steps_is_read_as_it_was_written(tmp_path: Path, column: list[int]):
    known = summary()
    columns = {name: np.array(column, "i8") for name in StepRows.DTYPES} | {"n_steps": np.ones(len(column))}
    (device,) = known.devices
    write_summary(
        tmp_path / "s",
        StoredSummary(replace(known, devices=(replace(device, steps=StepRows.of(**columns)),))),
    )
    found = read_summary(tmp_path / "s").summary.devices[0].steps

    assert found.allocated.tolist() == column
    assert found.end_ns.tolist() == column
    assert found.n_steps.tolist() == [1] * len(column)


def test_a_summary_of_minor_version_0_is_read(tmp_path: Path, assert_same_device):
    write_summary(tmp_path / "s", StoredSummary(summary()))
    document = json.loads((tmp_path / "s").read_bytes())
    document["schema"]["minor"] = 0
    steps = summary().devices[0].steps
    document["devices"][0]["steps"] = {name: column.tolist() for name, column in steps.columns()}
    del document["crc32"]
    body = json.dumps(document).encode()[:-1]

    found = parse_summary(body + b',\n "crc32": %d\n}' % zlib.crc32(body))

    assert_same_device(found.summary.devices[0], summary().devices[0])


@pytest.mark.parametrize(
    "change", [{"width": 3}, {"width": 8}, {"text": "?"}, {"unit": 2**70}, {"first": "x"}]
)
def test_a_column_that_cannot_be_read_is_no_summary(tmp_path: Path, change: dict[str, object]):
    write_summary(tmp_path / "s", StoredSummary(summary()))
    document = json.loads((tmp_path / "s").read_bytes())
    column = dict(
        zip(("first", "unit", "width", "text"), document["devices"][0]["steps"]["step"], strict=True)
    )
    document["devices"][0]["steps"]["step"] = list((column | change).values())
    del document["crc32"]
    body = json.dumps(document).encode()[:-1]

    assert parse_summary(body + b',\n "crc32": %d\n}' % zlib.crc32(body)) is None


def test_no_byte_may_be_changed_or_missing(tmp_path: Path):
    write_summary(tmp_path / "s", StoredSummary(summary()))
    whole = (tmp_path / "s").read_bytes()
    end = whole.rindex(b',\n "crc32"')

    assert parse_summary(whole) is not None
    for at in range(0, end, 7):
        assert parse_summary(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) is None, at
        assert parse_summary(whole[:at]) is None, at


def test_a_newer_version_is_left_to_a_newer_reader(tmp_path: Path):
    write_summary(tmp_path / "s", StoredSummary(summary()))
    body, _, _ = (tmp_path / "s").read_bytes().rpartition(b',\n "crc32"')

    def of_version(major: int, minor: int) -> bytes:
        changed = body.replace(b'"major": 1', b'"major": %d' % major).replace(
            b'"minor": 0', b'"minor": %d' % minor
        )
        return changed + b',\n "crc32": %d\n}' % zlib.crc32(changed)

    assert parse_summary(of_version(1, 0)) is not None
    assert parse_summary(of_version(1, 1)) is not None
    assert parse_summary(of_version(2, 0)) is None


@pytest.mark.parametrize("length", [10, 2000])
def test_a_summary_never_exceeds_its_limit_and_keeps_its_maxima(tmp_path: Path, length: int):
    large = summary(n_lines=40, n_steps=512, length=length)
    n_bytes = write_summary(tmp_path / "s", StoredSummary(replace(large, devices=large.devices * 8)))
    found = read_summary(tmp_path / "s").summary.devices[0]

    assert n_bytes <= LARGEST_BYTES
    assert found.steps.allocated.max() == 511
    assert found.steps.n_steps.sum() == 512
    assert (
        sum(line.n_bytes for line in found.lines) + found.other_bytes
        == sum(line.n_bytes for line in large.devices[0].lines) + 11
    )


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "s"
    write_summary(path, StoredSummary(summary(), "first"))
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))

    with pytest.raises(OSError, match="full"):
        write_summary(path, StoredSummary(summary(), "second"))
    assert read_summary(path).trace == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_neighboring_steps_are_joined_at_multiples():
    rows = StepRows.of(
        step=[3, 4, 5, 6, 9],
        n_steps=[1] * 5,
        start_ns=[30, 40, 50, 60, 90],
        end_ns=[39, 49, 59, 69, 99],
        allocated=[7, 2, 9, 1, 5],
        reserved=[8] * 5,
    ).grouped(4)

    assert rows.step.tolist() == [0, 4, 8]
    assert rows.n_steps.tolist() == [1, 3, 1]
    assert rows.start_ns.tolist() == [30, 40, 90]
    assert rows.end_ns.tolist() == [39, 69, 99]
    assert rows.allocated.tolist() == [7, 9, 5]


def test_events_of_all_parts_and_devices_count(tmp_path: Path):
    (tmp_path / "part1").mkdir()
    for name, size in (("events-0.arrows", 3), ("events-1.arrows", 4), ("marks-0.arrows", 50)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "part1" / "events-0.arrows").write_bytes(b"x" * 100)

    assert events_bytes(tmp_path) == 107
