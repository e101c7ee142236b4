"""Reading runs of events into columns gives exactly what reading every dict gives, or leaves it to that."""

import gzip
import io
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import captures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.errors import FormatError
from vramscope.formats import torch_snapshot
from vramscope.formats._fast_snapshot import packed
from vramscope.formats._fast_snapshot.events import snapshot_of
from vramscope.formats._fast_snapshot.opcode_blocks import (
    Body,
    Irregular,
)
from vramscope.formats._pickle import loads
from vramscope.model.recording import Run
from vramscope.model.table import Table

ROOT = Path(__file__).parents[3]
PICKLES = [*captures.genuine(), *captures.snapshots("*", (".pickle",))]
HERE = Path("a.pickle")


def by_runs(data: bytes, window: int = 1 << 22) -> tuple[Run, int]:
    """What is read by runs, and how many events these held."""
    found = packed(io.BytesIO(data), window)
    run = torch_snapshot.run_of(snapshot_of(found), HERE, found.n_trailing)
    return run, sum(each.n_rows for each in found.runs)


def by_dicts(data: bytes) -> Run:
    snapshot, n_trailing = loads(data)
    return torch_snapshot.run_of(snapshot, HERE, n_trailing)


def differences(one: Any, other: Any, where: str = "run") -> Iterator[str]:
    if isinstance(one, Table):
        for name, column in one.columns():
            if not np.array_equal(column, getattr(other, name)):
                yield f"{where}.{name}"
    if is_dataclass(one):
        for field in fields(one):
            mine, yours = getattr(one, field.name), getattr(other, field.name)
            if not isinstance(mine, np.ndarray):
                yield from differences(mine, yours, f"{where}.{field.name}")
    elif isinstance(one, tuple) and one and is_dataclass(one[0]):
        assert len(one) == len(other), where
        for i, (mine, yours) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, yours, f"{where}[{i}]")
    elif one != other:
        yield f"{where}: {one!r:.80} and {other!r:.80}"


def assert_same(one: Run, other: Run) -> None:
    assert list(differences(one, other)) == []


def n_events(run: Run) -> int:
    return sum(len(recording.trace) for recording in run.recordings)


def entry(i: int, **more: object) -> dict[str, Any]:
    """The words of all entries are the same objects, as in torch's files."""
    action = ("alloc", "free_requested", "free_completed")[i % 3]
    return {
        "action": action,
        "addr": 0x7F0000000000 + 512 * (i // 3),
        "size": 1000 + i // 3,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + i,
        **more,
    }


def dumped(entries: list[dict[str, Any]], protocol: int = 4, **more: object) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [entries], **more}, protocol=protocol)


@pytest.fixture(scope="module")
def made(module_at: Callable[[Path], ModuleType]) -> bytes:
    """A generated snapshot of two devices."""
    module = module_at(ROOT / "benchmarks" / "generate.py")
    return pickle.dumps(module.snapshot(12_000, n_devices=2, leak_bytes=4096), protocol=4)


@pytest.mark.parametrize("path", PICKLES, ids=lambda path: path.name)
def test_every_real_file_reads_the_same_both_ways(path: Path) -> None:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data

    run, n_packed = by_runs(data)

    assert_same(run, by_dicts(data))
    assert n_packed > 0.9 * n_events(run) or n_events(run) < 1100


@pytest.mark.parametrize("window", [700, 5_000, 70_000, 1 << 22])
def test_where_a_window_ends_makes_no_difference(made: bytes, window: int) -> None:
    run, n_packed = by_runs(made, window)

    assert_same(run, by_dicts(made))
    assert n_packed > (0.95 if window > 700 else 0.3) * n_events(run)


@pytest.mark.parametrize("window", [5_000, 70_000])
def test_the_reader_lets_others_go_first_after_each_window(made: bytes, window: int) -> None:
    calls: list[None] = []
    packed(io.BytesIO(made), window, lambda: calls.append(None))

    assert len(calls) > len(made) / window / 2


def test_events_without_stacks_with_pools_and_with_texts_are_packed() -> None:
    frames = [{"filename": "a.py", "name": f"f{i}", "line": i} for i in range(3)]
    more = [
        {},
        {"frames": frames[:2]},
        {"pool_id": (0, 0)},
        {"pool_id": (1, 70_000), "frames": []},
        {"user_metadata": "x" * 20, "frames": frames[1:]},
        {"compile_context": None, "frames": frames[:1]},
    ]
    data = dumped([entry(i, **more[i % len(more)]) for i in range(3000)])

    run, n_packed = by_runs(data)

    assert_same(run, by_dicts(data))
    assert n_packed > 2500
    assert set(run.recordings[0].pools) == {(0, 0), (1, 70_000)}


def test_rare_events_between_runs_refer_to_lists_inside_of_them() -> None:
    stacks = [[{"filename": "a.py", "name": "f", "line": line}] * 2 for line in range(5)]
    entries = [entry(i, frames=[*stacks[i % 5]]) for i in range(900)]
    for i in range(150, 900, 60):
        entries[i] = {"action": "oom", "device_free": i, "size": 1 << 40, "frames": entries[i - 20]["frames"]}
    data = dumped(entries)

    run, n_packed = by_runs(data)

    assert_same(run, by_dicts(data))
    assert 750 < n_packed < 890


@pytest.mark.parametrize("n_actions", [200, 300])
def test_any_number_of_actions_is_read_the_same(n_actions: int, tmp_path: Path) -> None:
    actions = [f"action{i}" for i in range(n_actions)]
    entries = [entry(i, action=actions[i // 10 % n_actions]) for i in range(6000)]
    path = tmp_path / "a.pickle"
    path.write_bytes(dumped(entries))

    assert_same(torch_snapshot.read(path), torch_snapshot.read_whole(path))


@pytest.mark.parametrize("n_bytes", [0, 1, 1_000_000_000])
def test_what_is_known_of_the_size_makes_no_difference(made: bytes, n_bytes: int) -> None:
    found = packed(io.BytesIO(made), 50_000, n_bytes=n_bytes)

    assert_same(torch_snapshot.run_of(snapshot_of(found), HERE, found.n_trailing), by_dicts(made))


def test_lists_of_earlier_windows_are_found_again() -> None:
    """Every list is referred to once from far behind it, where other windows and runs lie between."""
    stacks = [[{"filename": "a.py", "name": "f", "line": line}] for line in range(3)]
    entries = [entry(i, frames=[*stacks[i % 3]]) for i in range(3000)]
    entries += [entry(i, frames=entries[i]["frames"]) for i in range(3000)]
    data = dumped(entries)

    run, n_packed = by_runs(data, 20_000)

    assert_same(run, by_dicts(data))
    assert n_packed > 5500


def test_a_file_of_every_protocol_opens_the_same(tmp_path: Path) -> None:
    entries = [entry(i) for i in range(200)]
    runs = []
    for protocol in range(6):
        path = tmp_path / "a.pickle"
        path.write_bytes(dumped(entries, protocol))
        runs.append(torch_snapshot.read(path))

    for run in runs[1:]:
        assert_same(runs[0], run)


def test_bytes_after_the_end_are_noted_the_same() -> None:
    data = dumped([entry(i) for i in range(100)]) + b"tail" * 5000

    assert_same(by_runs(data, 4096)[0], by_dicts(data))


@pytest.mark.parametrize("more", [
    {"size": 2**48}, {"addr": -1}, {"addr": 2**64}, {"size": 2**63}, {"size": -(2**40)}, {"size": None},
    {"time_us": 1.5}, {"action": 7}, {"stream": True}, {"frames": 5}, {"frames": [5]}, {"pool_id": (1,)},
    {"time_us": 2**62},
], ids=str)  # fmt: skip
def test_one_wrong_event_among_many_is_refused_with_its_place(more: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(dumped([entry(i) | (more if i == 500 else {}) for i in range(900)]))

    with pytest.raises(FormatError) as by_both:
        torch_snapshot.read(path)
    with pytest.raises(FormatError) as slowly:
        torch_snapshot.read_whole(path)

    assert str(by_both.value) == str(slowly.value)


@pytest.mark.parametrize("whole", [
    lambda entries: {"segments": entries, "device_traces": [entries[:20]]},
    lambda entries: {"segments": [], "device_traces": [entries, entries]},
    lambda entries: {"segments": [], "device_traces": [[*entries, 0]]},
    lambda entries: {"segments": [], "device_traces": [[0, *entries]]},
    lambda entries: {"segments": [], "device_traces": [[*entries, *entries]]},
    lambda entries: {"segments": [], "device_traces": [], "elsewhere": entries},
    lambda entries: {"segments": [], "device_traces": entries},
    lambda entries: {"allocator_settings": {"max_split_size": entries}, "device_traces": [entries]},
    lambda entries: [entries],
])  # fmt: skip
def test_events_where_torch_has_none_come_to_the_same(whole: Any) -> None:
    data = pickle.dumps(whole([entry(i) for i in range(400)]), protocol=4)

    try:
        run, _ = by_runs(data)
    except (Irregular, FormatError):
        return

    assert_same(run, by_dicts(data))


def test_what_a_run_numbers_cannot_be_used_as_something_else() -> None:
    entries = [entry(i) for i in range(600)]
    shared = {"events": entries[500], "segments": [], "device_traces": [entries]}
    behind = {"device_traces": [entries], "segments": [], "allocator_settings": {"x": entries[500]}}

    for data in (pickle.dumps(shared, protocol=4), pickle.dumps(behind, protocol=4)):
        try:
            run, _ = by_runs(data)
        except Irregular:
            continue
        assert_same(run, by_dicts(data))


def test_a_reference_after_a_text_that_looks_like_opcodes_is_seen() -> None:
    entries = [entry(i) for i in range(900)]
    settings = {"text": "x" * 40 + "j", "value": entries[700]}
    data = pickle.dumps(
        {"segments": [], "device_traces": [entries], "allocator_settings": settings}, protocol=4
    )

    with pytest.raises(Irregular):
        by_runs(data)


def _run_ends(data: bytes) -> list[int]:
    """Where an event ends and the next begins."""
    return [i + 1 for i in range(len(data) - 4) if data[i : i + 4] == b"u}\x94("]


@pytest.mark.parametrize("opcodes", [
    b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"R", b"\x81", b"Q", b"N\x85R",
    b"K\x01r\x00\x00\x00\x05", b"K\x01q\x05", b"K\x010",
    b"\x96" + struct.pack("<Q", 1 << 40), b"\x8d" + struct.pack("<Q", 1 << 40),
], ids=repr)  # fmt: skip
def test_what_hides_between_two_events_is_refused(opcodes: bytes, tmp_path: Path) -> None:
    framed = dumped([entry(i) for i in range(900)])
    data = framed[:2] + framed[11:]
    at = _run_ends(data)[600]
    assert by_runs(data)[1] > 600
    path = tmp_path / "a.pickle"
    path.write_bytes(data[:at] + opcodes + data[at:])

    with pytest.raises(FormatError):
        torch_snapshot.read(path)


def test_an_event_inside_of_a_text_is_no_event() -> None:
    data = dumped([entry(i) for i in range(900)])
    ends = _run_ends(data)
    hidden = data[ends[500] : ends[510]].decode("latin-1")
    entries = [entry(i, user_metadata=hidden if i == 700 else "") for i in range(900)]
    whole = dumped(entries)

    assert_same(by_runs(whole)[0], by_dicts(whole))


def test_a_text_longer_than_many_windows_is_carried_over() -> None:
    entries = [entry(i, **({"user_metadata": "x" * 200_000} if i == 700 else {})) for i in range(1400)]
    data = dumped(entries)

    run, n_packed = by_runs(data, 4096)

    assert_same(run, by_dicts(data))
    assert n_packed > 1200


def test_what_ends_a_file_after_a_long_text_is_counted() -> None:
    entries = [entry(i, **({"user_metadata": "x" * 200_000} if i == 1399 else {})) for i in range(1400)]
    data = dumped(entries) + b"tail" * 5000

    assert_same(by_runs(data, 4096)[0], by_dicts(data))


def test_events_after_the_end_are_trailing_bytes() -> None:
    data = dumped([entry(i) for i in range(900)])
    ends = _run_ends(data)
    data = data[:2] + data[11:] + data[ends[500] : ends[520]]

    assert_same(by_runs(data)[0], by_dicts(data))


def test_words_defined_again_and_again_take_no_time() -> None:
    with pytest.raises(Irregular):
        by_runs(b"\x80\x04]\x94" + b"\x8c\x04size\x94a" * 100 + b".")


@pytest.mark.parametrize("window", [500, 1 << 22])
def test_a_file_cut_anywhere_is_left_to_the_other_reader(window: int) -> None:
    data = dumped([entry(i) for i in range(600)])

    for size in range(0, len(data), 397):
        with pytest.raises(Irregular):
            by_runs(data[:size], window)


_INSERTED = (
    b"\x94",
    b"N0",
    b"h\x05",
    b"e(",
    b"u",
    b"(",
    b"K\x01",
    b"]\x94",
    b"j\x05\x01\x00\x00",
    b"\x88",
    b".",
)


def mutated(data: bytes, seed: int) -> bytes:
    """Some bytes changed, lost, repeated or put in; or whole events moved."""
    source, changed = random.Random(seed), bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        at = source.randrange(len(changed) // 4, len(changed))
        kind = source.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del changed[at : at + source.randrange(1, 9)]
        elif kind == 2:
            changed[at:at] = source.choice(_INSERTED)
        elif kind == 3:
            changed[at:at] = changed[at - 100 : at]
        elif kind == 4:
            reference = max(changed.find(b"j", at), 0)
            changed[reference + 1 : reference + 5] = source.randrange(20_000).to_bytes(4, "little")
        else:
            events = [i for i in range(at, min(at + 2000, len(changed))) if changed[i : i + 3] == b"}\x94("]
            if len(events) > 2:
                one, two, three = events[:3]
                changed[one:three] = changed[two:three] + changed[one:two]
    return bytes(changed)


FRAMES = [{"filename": f"/a/{i}.py", "name": f"f{i}", "line": i} for i in range(20)]
SMALL = dumped(
    [entry(i, user_metadata="", frames=FRAMES[i % 9 : i % 9 + 4]) for i in range(300)],
    allocator_settings={"max_split_size": -1},
)


def test_most_of_what_is_damaged_below_is_packed() -> None:
    assert by_runs(SMALL)[1] > 150


@given(st.integers(0, 10**9))
def test_a_damaged_file_is_read_the_same_or_left_to_the_other_reader(seed: int) -> None:
    data = mutated(SMALL, seed)
    try:
        run, _ = by_runs(data, random.Random(seed).choice((600, 1 << 20)))
    except (Irregular, FormatError):
        return

    assert_same(run, by_dicts(data))


@given(st.binary(max_size=300), st.integers(1, 64))
def test_frames_are_taken_out_wherever_blocks_end(text: bytes, block: int) -> None:
    pieces = [text[i : i + 17] for i in range(0, len(text), 17)]
    framed = b"\x80\x04" + b"".join(b"\x95" + struct.pack("<Q", len(piece)) + piece for piece in pieces)
    body, found = Body(io.BytesIO(framed)), b""

    while more := body.read(block):
        found += b"".join(more)

    assert found == text
