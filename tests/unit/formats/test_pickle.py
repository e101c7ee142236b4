"""Plain data comes out as CPython reads it; anything else is refused, runs nothing, fills no memory."""

import os
import pickle
import pickletools
import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.errors import FormatError
from vramscope.formats._pickle import loads

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
)
_DATA = st.recursive(
    _SCALARS | st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=2).map(tuple),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=30,
)


def snapshot_like(n_events: int, n_frames: int = 12) -> dict[str, object]:
    """The shape of torch's snapshot, frames shared as torch shares them."""
    frames = [{"filename": f"/a/model_{i}.py", "name": f"f{i}", "line": i} for i in range(300)]
    stacks = [[frames[(i * 7 + j) % 300] for j in range(n_frames)] for i in range(50)]
    trace = [
        {
            "action": "alloc" if i % 2 else "free_completed",
            "addr": 0x7F0000000000 + 512 * i,
            "size": 1000 + i,
            "stream": 0,
            "time_us": 1_700_000_000_000_000 + i,
            "frames": stacks[i % 50],
            "user_metadata": "",
            "pool_id": (0, 300 * (i % 2)),
        }
        for i in range(n_events)
    ]
    return {
        "segments": [],
        "device_traces": [trace],
        "allocator_settings": {"garbage_collection_threshold": 0.5},
    }


class Exploit:
    """Reduces to any call."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, object]:
        return self.call[0], self.call[1:]


def refused(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        loads(data)
    return str(caught.value)


@given(_DATA, st.integers(0, 5))
def test_plain_data_of_every_protocol_comes_out_as_it_went_in(data: object, protocol: int) -> None:
    assert loads(pickle.dumps(data, protocol=protocol)) == (data, 0)


@pytest.mark.parametrize("protocol", range(6))
def test_a_snapshot_of_every_protocol_keeps_its_sharing(protocol: int) -> None:
    snapshot = snapshot_like(3000)

    read, _ = loads(pickle.dumps(snapshot, protocol=protocol))

    assert read == snapshot
    trace = read["device_traces"][0]
    assert trace[0]["frames"] is trace[50]["frames"]


def test_long_texts_between_frames_are_read() -> None:
    data = {"a": "x" * 100_000, "b": ["ä" * 70_000, (1, 2)], "c": 5}

    assert loads(pickle.dumps(data, protocol=4)) == (data, 0)


def test_a_tuple_cut_by_a_frame_is_read() -> None:
    data = [{"address": 2**40 + i, "pool": (i % 7, i % 300)} for i in range(100_000)]

    assert loads(pickle.dumps(data, protocol=4))[0] == data


def test_bytes_after_the_end_are_counted() -> None:
    assert loads(pickle.dumps([1, 2]) + b"garbage") == ([1, 2], 7)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_by_name(protocol: int, tmp_path: Path) -> None:
    victim = tmp_path / "ran"

    message = refused(pickle.dumps({"segments": [Exploit(os.system, f"touch {victim}")]}, protocol=protocol))

    assert "posix.system" in message
    assert "plain dicts and lists" in message
    assert not victim.exists()


_UNWANTED = """
GLOBAL STACK_GLOBAL INST OBJ REDUCE BUILD NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID DUP POP POP_MARK
EMPTY_SET ADDITEMS FROZENSET NEXT_BUFFER READONLY_BUFFER BYTEARRAY8 TUPLE1 TUPLE3 LONG4 STRING BINSTRING
SHORT_BINSTRING BINBYTES BINBYTES8 SHORT_BINBYTES FRAME PROTO
"""
_CODES = {op.name: op.code.encode("latin-1") for op in pickletools.opcodes}


@pytest.mark.parametrize("name", _UNWANTED.split())
def test_every_opcode_that_is_not_plain_data_is_refused(name: str) -> None:
    message = refused(b"\x80\x02K\x01" + _CODES[name] + b"os\nsystem\n" + b"." * 80)

    assert name in message


def test_an_opcode_hidden_after_a_frame_is_found() -> None:
    # C's unpickler drops the rest of a frame when an opcode reaches over its end, and would read GLOBAL here.
    hidden = (
        b"\x80\x04\x95" + struct.pack("<Q", 4) + b"\x8c\x09ab" + b"123456789cposix\nsystem\n." + b"." * 64
    )

    refused(hidden)


@pytest.mark.parametrize("bomb", [
    b"\x80\x02Nr\xff\xff\xff\x7f.",
    b"Np999999999\n.",
    b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
    b"\x80\x02X\xff\xff\xff\xffab.",
    b"\x80\x02\x8b\xff\xff\xff\x7f.",
    b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    b"I" + b"9" * 100_000 + b"\n.",
    b"\x80\x02" + b"]" * 1_000_000 + b".",
    b"\x80\x02" + b"}" * 1_000_000 + b".",
    b"(l" * 500_000 + b".",
    b"(" * 1_000_000 + b".",
    b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    b"\x80\x02" + b"K\x01K\x01\x86\x86" * 100 + b".",
    b"\x80\x02}" + b"K\x01K\x01\x86\x94" + b"h\x00h\x00\x86\x94" * 60 + b"Ns.",
], ids=lambda bomb: repr(bomb[:12]))  # fmt: skip
def test_a_bomb_is_refused_within_little_memory(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        refused(bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 12 * len(bomb) + (1 << 20)


def test_the_densest_data_it_accepts_takes_30_times_its_size_at_most() -> None:
    item = b"}h\x00Nsh\x00h\x00h\x00"
    data = b"\x80\x04\x8c\x01a\x94](" + item * 50_000 + b"e."
    tracemalloc.start()
    try:
        loads(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # A dict of one key takes 232 bytes up to Python 3.10, 184 since.
    assert most < (30 if sys.version_info >= (3, 11) else 35) * len(data)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_file_cut_at_any_thousandth_byte_is_refused(protocol: int) -> None:
    data = pickle.dumps(snapshot_like(800), protocol=protocol)

    for size in range(0, len(data), 1000):
        assert "dump it again" in refused(data[:size])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_as_python_reads_them(data: bytes) -> None:
    try:
        read, n_trailing = loads(data)
    except FormatError:
        return

    assert repr(read) == repr(pickle.loads(data))
    assert n_trailing < len(data)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_flipped_byte_never_does_more_than_change_data(position: int, byte: int) -> None:
    data = bytearray(pickle.dumps(snapshot_like(20), protocol=4))
    data[position % len(data)] = byte
    try:
        read, _ = loads(bytes(data))
    except FormatError:
        return

    assert type(read) in (dict, list, str, int, float, bool, type(None), tuple)


def test_a_list_that_holds_itself_is_read() -> None:
    data: list[object] = []
    data.append(data)

    read, _ = loads(pickle.dumps(data))

    assert read[0] is read
