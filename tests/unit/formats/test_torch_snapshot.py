"""A snapshot opens as it was saved: pickle, gzip or JSON, misnamed or not; damaged ones are refused."""

import gzip
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import captures
import pytest

from vramscope import formats as package
from vramscope import registry
from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats.torch_snapshot import read, sniff
from vramscope.model.recording import Outcome, Run

FRAMES = [{"filename": "train.py", "name": "main", "line": 9}]


def entry(action: str, addr: int, size: int, time_us: int) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": FRAMES}


def block(address: int, size: int, state: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": FRAMES}


def snapshot() -> dict[str, Any]:
    """Device 1 of two: a block of 512 was there before; one of 1024 comes and goes, one stays."""
    used = [block(0, 512, "active_allocated"), block(512, 1024, "active_allocated")]
    segment: dict[str, Any] = {"device": 1, "address": 0, "total_size": 2097152, "stream": 0}
    segment |= {"segment_type": "small", "blocks": [*used, block(1536, 2095616, "inactive")]}
    trace = [
        entry("alloc", 512, 1000, 5),
        entry("free_requested", 512, 1000, 6),
        entry("free_completed", 512, 1000, 7),
        entry("alloc", 512, 1024, 8),
    ]
    annotations = [
        {"name": "Optimizer.step#SGD.step", "stage": stage, "time_us": time, "device": 1}
        for stage, time in (("START", 6), ("END", 7))
    ]
    return {
        "segments": [segment],
        "device_traces": [[], trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": annotations,
    }


def opened(path: Path, data: bytes) -> Run:
    path.write_bytes(data)
    assert sniff(data[: 1 << 16], path)
    return read(path)


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_snapshot_becomes_a_recording_of_its_device(tmp_path):
    run = opened(tmp_path / "run7.pickle", pickle.dumps(snapshot()))

    (recording,) = run.recordings
    assert (run.name, run.outcome, run.started_ns, run.ended_ns) == ("run7", Outcome.FILE, 5000, 8000)
    assert (recording.source, recording.device.index) == ("snapshot", 1)
    assert recording.trace.block_size.tolist() == [1024] * 4
    assert recording.process.allocator["max_split_size"] == "-1"
    assert recording.initial.blocks.size.tolist() == [512, 2096640]
    assert [note.code for note in recording.notes] == ["starts_late"]
    assert recording.notes[0].value == 512
    assert len(recording.phases) == 1


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_gives_the_same(tmp_path, protocol):
    recording = opened(tmp_path / "a.pickle", pickle.dumps(snapshot(), protocol=protocol)).recordings[0]

    assert recording.trace.size.tolist() == [1000, 1000, 1000, 1024]


@pytest.mark.parametrize(("name", "pack"), [
    ("a.pickle.gz", lambda data: gzip.compress(pickle.dumps(data))),
    ("a.json", lambda data: json.dumps(data).encode()),
    ("a.json.gz", lambda data: gzip.compress(json.dumps(data).encode())),
    ("a.json", pickle.dumps),
    ("a", lambda data: b"\n " + json.dumps(data).encode()),
    ("a.json", lambda data: json.dumps(data).encode("utf-8-sig")),
])  # fmt: skip
def test_the_content_decides_and_not_the_name(tmp_path, name, pack):
    run = opened(tmp_path / name, pack(snapshot()))

    assert (run.name, len(run.recordings[0].trace)) == ("a", 4)


def test_a_bare_list_of_segments_opens(tmp_path):
    recording = opened(tmp_path / "a.pickle", pickle.dumps(snapshot()["segments"])).recordings[0]

    assert len(recording.final.blocks) == len(recording.initial.blocks) == 3
    assert [note.code for note in recording.notes] == ["no_trace"]


def test_what_follows_the_pickle_is_noted(tmp_path):
    run = opened(tmp_path / "a.pickle", pickle.dumps(snapshot()) + b"tail")

    assert [(note.code, note.value) for note in run.notes] == [("trailing", 4)]


@pytest.mark.parametrize(("data", "words"), [
    (b"", "the file ends in the middle"),
    (pickle.dumps(snapshot())[:-20], "the file ends in the middle"),
    (gzip.compress(pickle.dumps(snapshot()))[:-20], "damaged gzip"),
    (json.dumps(snapshot()).encode()[:-20], "damaged JSON"),
    (b'{"segments": ' + b"[" * 100_000, "damaged JSON"),
    (json.dumps({"segments": [{"address": 10**30}]}).encode(), "segments[0]"),
    (b'{"segments": [{"address": ' + b"9" * 5000 + b"}]}", "JSON"),
    (pickle.dumps({"model": [1, 2]}), "no memory snapshot"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_damaged_file_is_refused_by_its_path(tmp_path, data, words):
    assert words in refused(tmp_path / "a.pickle", data)


def test_a_file_that_is_gone_is_refused(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        read(tmp_path / "a.pickle")


def test_a_gzip_bomb_is_refused_within_its_bounds(tmp_path):
    bomb = gzip.compress(b"\0" * (200 << 20), compresslevel=9)
    tracemalloc.start()
    try:
        message = refused(tmp_path / "a.pickle.gz", bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "unpack" in message
    assert most < 100 << 20


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x1f\x8b", b"{", b"[1, 2]", b"hello", b"\x80"])
def test_strangers_are_not_taken_for_snapshots(data):
    assert not sniff(data, Path("x.json"))


CAPTURES = [*captures.genuine(), *(path for path in captures.OTHERS.glob("*") if path.suffix != ".md")]


@pytest.mark.parametrize("path", sorted(CAPTURES), ids=lambda path: path.name)
def test_every_shared_file_opens_or_is_refused_with_advice(path):
    with path.open("rb") as file:
        head = file.read(1 << 16)
    fitting = [form for form in registry.parts(package, Format).values() if form.sniff(head, path)]
    assert len(fitting) == 1

    if path.suffix != ".html":
        assert fitting[0].read(path).recordings
    else:
        with pytest.raises(FormatError, match="or record a memory snapshot"):
            fitting[0].read(path)


@pytest.mark.skipif(not captures.OTHERS.exists(), reason=captures.NO_OTHERS)
def test_the_json_twin_is_its_pickle():
    twins = [captures.OTHERS / f"snap_t26_adam_tiny_complete.{kind}" for kind in ("json", "pickle")]

    one, other = (read(path).recordings[0] for path in twins)

    for (name, column), (_, twin) in zip(one.trace.columns(), other.trace.columns(), strict=True):
        assert column.tolist() == twin.tolist(), name
    frames = [[twin.stacks.frames(i) for i in twin.trace.stack_id] for twin in (one, other)]
    assert frames[0] == frames[1]


@pytest.mark.parametrize("place", ["event", "segment", "block"])
def test_a_size_that_no_device_has_is_refused(place: str, tmp_path: Path) -> None:
    data = snapshot()
    where = {
        "event": data["device_traces"][1][2],
        "segment": data["segments"][0],
        "block": data["segments"][0]["blocks"][1],
    }
    where[place]["total_size" if place == "segment" else "size"] = 1 << 48

    message = refused(tmp_path / "a.pickle", pickle.dumps(data))

    assert place in message
    assert "256" in message


def test_a_failed_request_may_be_of_any_size(tmp_path: Path) -> None:
    data = snapshot()
    failed = entry("oom", 0, 1 << 60, 9) | {"device_free": 5}
    del failed["addr"]
    data["device_traces"][1].append(failed)

    run = opened(tmp_path / "a.pickle", pickle.dumps(data))

    assert run.recordings[0].trace.size[-1] == 1 << 60


def host_block(address: int, size: int, state: str) -> dict[str, Any]:
    parts = {"device": -1, "address": address, "total_size": size, "stream": 0, "segment_type": "small"}
    return parts | {"blocks": [block(address, size, state)]}


def host_part() -> dict[str, Any]:
    """4096 bytes were pinned before, and are in use once more; 128 stay; 1024 wait for a stream at last."""
    moves = [
        ("free_requested", 0, 4096),
        ("free_completed", 0, 4096),
        ("segment_alloc", 8192, 128),
        ("alloc", 8192, 128),
        ("segment_alloc", 16384, 1024),
        ("alloc", 16384, 1024),
        ("alloc", 0, 4096),
        ("free_requested", 16384, 1024),
        ("free_requested", 0, 4096),
        ("free_completed", 0, 4096),
        ("segment_free", 0, 4096),
    ]
    held = [host_block(8192, 128, "active_allocated"), host_block(16384, 1024, "active_pending_free")]
    # What torch writes of memory that cudaHostRegister pinned, and of a block that nobody uses.
    held += [host_block(1 << 20, 2048, "active_allocated"), host_block(1 << 21, 512, "inactive")]
    return {
        "host_traces": [entry(*move, time_us) for time_us, move in enumerate(moves, 5)],
        "host_segments": held,
    }


@pytest.mark.parametrize("dump", [pickle.dumps, lambda data: json.dumps(data).encode()])
def test_pinned_host_memory_is_read_by_event_and_line(tmp_path: Path, dump: Any) -> None:
    found = opened(tmp_path / "a.pickle", dump(snapshot() | host_part())).recordings[0]

    pinned = found.pinned
    assert pinned is not None
    before = sorted(pinned.initial.blocks.address.tolist()), sorted(pinned.initial.segments.size.tolist())
    assert before == ([0, 1 << 20, 1 << 21], [512, 2048, 4096])
    assert pinned.trace.block_size.tolist() == pinned.trace.size.tolist()
    assert pinned.trace.size.tolist() == [4096, 128, 128, 1024, 1024, 4096, 4096, 4096]
    peak = found.summary().pinned
    assert peak is not None
    in_use = 2048 + 128 + 1024 + 4096
    assert (peak.peak_bytes, peak.reserved_bytes) == (in_use, in_use + 512)
    assert [(row.n_bytes, row.frames[0].line) for row in peak.live] == [(in_use, 9)]


@pytest.mark.parametrize(
    "host",
    [
        {"host_traces": 5},
        {"host_traces": [7]},
        {"host_segments": ["x"]},
        {"host_segments": [{}]},
        {"host_traces": [{"action": 5}]},
        {"host_segments": [host_block(0, 1 << 60, "inactive")]},
    ],
)
def test_damaged_pinned_host_memory_is_refused_by_name(tmp_path: Path, host: dict[str, Any]) -> None:
    message = refused(tmp_path / "a.pickle", pickle.dumps(snapshot() | host))

    assert "pinned host memory: " in message or "host_traces" in message


def test_a_window_says_nothing_of_the_pinned_memory_of_the_whole(tmp_path: Path) -> None:
    found = opened(tmp_path / "a.pickle", pickle.dumps(snapshot() | host_part())).recordings[0]

    assert found.window(1).summary().pinned is None
