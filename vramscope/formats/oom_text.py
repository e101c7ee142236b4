"""Messages of torch's OutOfMemoryError, in any of their wordings since 1.0: alone, or in a log.

Each contains the requested size and the totals at that moment, rounded to two decimals. It becomes a failed
allocation in a trace that consists of such instants only.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, contents
from vramscope.formats._text import as_utf8, is_text, run_of_text, tail
from vramscope.formats._totals_trace import NO_LAYOUT, TotalsAt, TotalsTrace
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind, Marks, Note
from vramscope.model.recording import Recording, Run
from vramscope.units import format_bytes, parse_bytes

_SIZE = rb"(\d{1,19}(?:\.\d{1,9})?)\s+(bytes|[KMGTP]i?B)"


def _phrase(words: str) -> re.Pattern[bytes]:
    """*words* with SIZE for a number and its unit; lines may be wrapped anywhere."""
    return re.compile(words.encode().replace(b"SIZE", _SIZE).replace(b" ", rb"\s+"))


_START = _phrase(r"(?P<kind>CUDA|HIP|XPU) out of memory\. Tried to allocate SIZE")
_MPS = _phrase(
    r"MPS backend out of memory \(MPS allocated: SIZE, other allocations: SIZE, max allowed: SIZE\)\. "
    "Tried to allocate SIZE"
)
"""The message on Apple's chips; its KB, MB and GB are powers of 1024 too."""
_RANK = re.compile(rb"\[(?:default)?rank(\d{1,6})\]:")
_DEVICE = _phrase(r"GPU (\d{1,4})")
_LEGACY = {
    "capacity": _phrase("SIZE total capacity"),
    "allocated": _phrase("SIZE already allocated"),
    "free": _phrase("SIZE free"),
    "limit": _phrase("SIZE allowed"),
    "reserved": _phrase("SIZE reserved in total by PyTorch"),
    "unallocated": _phrase("SIZE cached"),
}
_MODERN = {
    "capacity": _phrase("a total capac(?:i)?ty of SIZE"),
    "free": _phrase("of which SIZE is free"),
    "process": _phrase("this process has SIZE memory in use"),
    "limit": _phrase("SIZE allowed;"),
    "allocated": _phrase("SIZE is allocated by PyTorch"),
    "pools": _phrase("with SIZE allocated in private pools"),
    "unallocated": _phrase("SIZE is reserved by PyTorch but unallocated"),
}
_OTHERS = _phrase(r"Process (\d{1,10}) has SIZE memory in use")
_WARNING = re.compile(
    rb"memory allocation failed with OOM on device (\d{1,4}) while trying to allocate (\d{1,19}) bytes "
    rb"\(free: (\d{1,19}), total: (\d{1,19})\)"
)
_LONGEST = 4000
"""The longest message in bytes; it may list many processes."""
_MOST_NOTED = 20
_MOST = 1 << 50
"""Bytes from which on a figure means that the value is not known: 2^64 less one, as WSL and Windows give."""
_SAME_BYTES = 32 << 20
"""Rounding of figures in GiB with two decimals, of the three that are compared."""
_KINDS = {b"CUDA": "cuda", b"HIP": "hip", b"XPU": "xpu"}

_MOMENTS_ONLY = Note(
    NoteCode.MOMENTS_ONLY,
    "an error message gives totals at one moment, rounded to two decimals: what happened before, and by whom "
    "the memory was allocated, is not in it",
)


class _Message(NamedTuple):
    """One message; values that it does not contain are absent."""

    rank: int
    device: int
    requested: int
    known: dict[str, int]
    """The bytes by the names of ``_LEGACY`` and ``_MODERN``."""
    others: tuple[tuple[int, int], ...]
    """The pid and bytes of each other process."""
    kind: str = "cuda"
    """The kind of device."""
    pid: int = 0
    """The pid of the process itself, where the message gives it; else 0."""


def sniff(head: bytes, path: Path) -> bool:
    """Return whether it is a text with such a message at its beginning or end."""
    start = as_utf8(beginning(head))
    parts = (start, tail(head, path))
    return is_text(start) and any(words.search(part) for words in (_START, _MPS) for part in parts)


def read(path: Path) -> Run:
    """Read one recording per rank and device."""
    messages = list(_messages(as_utf8(contents(path))))
    if not messages:
        raise FormatError(f"{path}: no complete message of an out-of-memory error in it")
    by_place: dict[tuple[int, int], list[_Message]] = {}
    for message in messages:
        by_place.setdefault((message.rank, message.device), []).append(message)
    return run_of_text(path, [_recording(place, by_place[place]) for place in sorted(by_place)])


def figures_in(text: str) -> tuple[int, dict[str, int]] | None:
    """Return the requested bytes and the other figures of the last message in *text*; None without one.

    Their names are ``capacity``, ``free``, ``process``, ``limit``, ``allocated``, ``pools`` and
    ``unallocated``; a wording that lacks one leaves it out.
    """
    found = list(_messages(text.encode(errors="replace")))
    return (found[-1].requested, found[-1].known) if found else None


def _messages(data: bytes) -> Iterator[_Message]:
    """Yield all messages; one that is repeated at once (a log, then the traceback) counts once."""
    starts = sorted([*_START.finditer(data), *_MPS.finditer(data)], key=lambda found: found.start())
    ends = [*(start.start() for start in starts[1:]), len(data)]
    before, last = 0, None
    for start, end in zip(starts, ends, strict=False):
        text = data[start.end() : min(end, start.end() + _LONGEST)].split(b"\n\n")[0]
        around = data[max(before, start.start() - _LONGEST) : start.start()]
        message = _mps(start) if start.re is _MPS else _message(start, text, around)
        if message != last:
            yield message
        before, last = start.end(), message


def _message(start: re.Match[bytes], text: bytes, before: bytes) -> _Message:
    phrases = _LEGACY if b"already allocated" in text or b"total capacity;" in text else _MODERN
    matches = {name: phrase.search(text) for name, phrase in phrases.items()}
    known = {name: _bytes(*match.groups()) for name, match in matches.items() if match}
    requested = _bytes(start[2], start[3])
    device = _DEVICE.search(text)
    index = int(device[1]) if device else 0
    warnings = _WARNING.findall(before)
    if warnings and _is_same(int(warnings[-1][1]), start):
        # The allocator's own warning before it contains the same numbers unrounded.
        index, requested, known["free"], known["capacity"] = (min(int(word), _MOST) for word in warnings[-1])
    known = {name: n_bytes for name, n_bytes in known.items() if n_bytes < _MOST}
    ranks = _RANK.findall(before[before.rfind(b"\n") + 1 :])
    named = [(int(pid), _bytes(size, unit)) for pid, size, unit in _OTHERS.findall(text)]
    others = tuple((pid, n_bytes) for pid, n_bytes in named if n_bytes < _MOST)
    found = _Message(int(ranks[-1]) if ranks else 0, index, requested, known, others, _KINDS[start["kind"]])
    return _with_own_process(found)


def _with_own_process(message: _Message) -> _Message:
    """Return *message* with its own process told from others.

    In a container torch names the process itself by a pid that it does not know. It is the one beside which
    the device has no place for what this allocator has reserved.
    """
    known, state = message.known, _state(message)
    if "process" in known or state is None or not {"capacity", "free"} <= known.keys():
        return message
    used = known["capacity"] - known["free"]
    own = [(pid, n_bytes) for pid, n_bytes in message.others if used - n_bytes < state.reserved - _SAME_BYTES]
    if len(own) != 1:
        return message
    (pid, n_bytes), others = own[0], tuple(each for each in message.others if each != own[0])
    return message._replace(known=known | {"process": n_bytes}, others=others, pid=pid)


def _mps(found: re.Match[bytes]) -> _Message:
    """Return the message of MPS; the allowed bytes stand for the device, as no more can be allocated."""
    words = found.groups()
    own, other, most, asked = (_bytes(*words[at : at + 2]) for at in (0, 2, 4, 6))
    free = max(most - own - other, 0)
    known = {"allocated": own, "capacity": most, "free": free, "process": own + other}
    return _Message(0, 0, asked, known, (), "mps")


def _is_same(exact: int, start: re.Match[bytes]) -> bool:
    """Return whether the rounded number of the message may be that of the warning."""
    unit = parse_bytes(f"1 {_unit(start[3])}")
    return abs(exact - _bytes(start[2], start[3])) <= unit / 100


def _bytes(number: bytes, unit: bytes) -> int:
    return min(parse_bytes(f"{number.decode()} {_unit(unit)}"), _MOST)


def _unit(word: bytes) -> str:
    return word.decode().replace("bytes", "B")


def _recording(place: tuple[int, int], messages: list[_Message]) -> Recording:
    rank, index = place
    builder = TotalsTrace()
    instants = []
    for message in messages:
        state = _state(message)
        if state is not None:
            builder.set_totals(state)
        builder.fail(message.requested)
        instants.append(len(builder))
    return Recording(
        source="snapshot",
        process=Process(rank=rank),
        device=Device(
            index,
            messages[-1].kind,
            total_bytes=max(message.known.get("capacity", 0) for message in messages),
        ),
        trace=builder.trace(),
        marks=_marks(messages, instants),
        counters=_counters(messages, instants),
        notes=(*_notes(messages), _MOMENTS_ONLY, NO_LAYOUT),
    )


def _state(message: _Message) -> TotalsAt | None:
    """Return the totals; None if the message is cut before them."""
    known = message.known
    if "allocated" not in known:
        return None
    allocated = known["allocated"]
    reserved = max(known.get("reserved", allocated + known.get("unallocated", 0)), allocated)
    return TotalsAt(allocated, allocated, allocated, reserved)


def _marks(messages: list[_Message], instants: list[int]) -> Marks:
    rows = [
        (message.known["free"], at)
        for message, at in zip(messages, instants, strict=True)
        if "free" in message.known
    ]
    return Marks.of(
        kind=[MarkKind.OOM] * len(rows), value=[free for free, _ in rows], event=[at for _, at in rows]
    )


def _counters(messages: list[_Message], instants: list[int]) -> Counters:
    def column(name: str) -> list[int]:
        return [message.known.get(name, -1) for message in messages]

    total, free = column("capacity"), column("free")
    states = [_state(message) for message in messages]
    return Counters.of(
        time_ns=[0] * len(messages),
        event=instants,
        allocated_bytes=[state.allocated if state else -1 for state in states],
        reserved_bytes=[state.reserved if state else -1 for state in states],
        device_used_bytes=[a - b if a >= b >= 0 else -1 for a, b in zip(total, free, strict=True)],
        device_total_bytes=total,
        process_used_bytes=column("process"),
        utilization_percent=[-1] * len(messages),
    )


def _notes(messages: list[_Message]) -> list[Note]:
    """Return the values that have no column; only of the last messages if there are many."""
    notes = [note for message in messages[-_MOST_NOTED:] for note in _of_one(message)]
    n_cut = sum(_state(message) is None for message in messages)
    if n_cut:
        cut = (
            "one message is cut before it says" if n_cut == 1 else f"{n_cut} messages are cut before they say"
        )
        notes.append(Note(NoteCode.TRUNCATED, f"{cut} what was allocated: it is not known there", n_cut))
    n_runs = len({message.pid for message in messages} - {0})
    if n_runs > 1:
        text = f"the messages are of {n_runs} processes: each is a run of its own, and one follows another"
        notes.append(Note(NoteCode.SEVERAL_RUNS, text, n_runs))
    return list(dict.fromkeys(notes))


def _of_one(message: _Message) -> Iterator[Note]:
    known = message.known
    words = {
        "process": (NoteCode.PROCESS_USED, "in use by this process, context and libraries included"),
        "pools": (NoteCode.PRIVATE_POOLS, "of the allocated memory in private pools, as of CUDA graphs"),
        "limit": (NoteCode.LIMIT, "allowed to this process (set_per_process_memory_fraction)"),
    }
    for name, (code, text) in words.items():
        if name in known:
            yield Note(code, f"{format_bytes(known[name])} {text}", known[name])
    for pid, n_bytes in message.others[:_MOST_NOTED]:
        yield Note(
            NoteCode.OTHER_PROCESS, f"process {pid} had {format_bytes(n_bytes)} of the same device", n_bytes
        )


FORMAT = Format("oom_text", sniff, read)
