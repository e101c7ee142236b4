"""Messages of out-of-memory errors: torch's in any wording since 1.0 and on any device, and JAX's.

Each contains the requested size and the totals at that moment, rounded to two decimals. What a message does
not say, or what is cut off, is unknown.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from vramscope.formats.log.lines import PATTERNS, Shaped, clean, joined, rank_in
from vramscope.formats.log.patterns import table_rows
from vramscope.units import parse_bytes

_SIZE = r"(\d{1,3}(?:,\d{3})+(?:\.\d{1,9})?|\d{1,19}(?:\.\d{1,9})?)\s*(bytes|[KMGTP]i?B)\b"


def _phrase(words: str) -> re.Pattern[str]:
    """*words* with SIZE for a number and its unit; lines may be wrapped anywhere."""
    return re.compile(words.replace("SIZE", _SIZE).replace(" ", r"\s+"), re.IGNORECASE)


_TORCH = _phrase(r"\b(?P<kind>CUDA|HIP|XPU|NPU|MUSA|MLU|GCU|HPU) out of memory[.:,]? Tried to allocate SIZE")
_MPS = _phrase(
    r"MPS backend out of memory \(MPS allocated: SIZE, other allocations: SIZE, max allowed: SIZE\)\. "
    "Tried to allocate SIZE"
)
"""The message on Apple's chips; its KB, MB and GB are powers of 1024 too."""
_ASYNC = PATTERNS["oom_async"]
"""The message of cudaMallocAsync, whose figures follow in lines of their own."""
_JAX = re.compile(
    r"(?:RESOURCE_EXHAUSTED:?[^\n]{0,200}?(?:Out of memory (?:while trying to allocate|allocating)|"
    rf"Failed to allocate request for)|ran out of memory trying to allocate)\s+{_SIZE}",
    re.IGNORECASE,
)
_STARTS = (_TORCH, _MPS, _ASYNC, _JAX)
_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU|MUSA|MLU|device(?: ordinal)?)\s+(\d{1,4})\b", re.IGNORECASE)
_LEGACY, _MODERN, _OF_ASYNC = (
    {name: _phrase(words) for kind, name, words, *_ in table_rows() if kind == of}
    for of in ("oom_legacy", "oom_modern", "oom_async")
)
"""The figures of a message by their names: before torch 2.1, since, and of cudaMallocAsync."""
_OTHERS = _phrase(r"Process (\d{1,10}) has SIZE memory in use")
_LONGEST = 4000
"""The longest message in bytes; it may list many processes."""
_MOST = 1 << 50
"""Bytes from which on a figure means that the value is not known: 2^64 less one, as WSL and Windows give."""
_SAME_BYTES = 32 << 20
"""Rounding of figures in GiB with two decimals, of the three that are compared."""


class Message(NamedTuple):
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

    @property
    def reserved(self) -> int:
        """Bytes reserved, or at least that; −1 where the message is cut before it says what was allocated."""
        known = self.known
        if "allocated" not in known:
            return -1
        return max(
            known.get("reserved", known["allocated"] + known.get("unallocated", 0)), known["allocated"]
        )


def figures_in(text: str) -> tuple[int, dict[str, int]] | None:
    """Return the requested bytes and the other figures of the last message in *text*; None without one.

    Their names are ``capacity``, ``free``, ``process``, ``limit``, ``allocated``, ``pools`` and
    ``unallocated``; a wording that lacks one leaves it out.
    """
    found = list(messages(text, "", ""))
    return (found[-1].requested, found[-1].known) if found else None


def messages(text: str, before: str, after: str) -> Iterator[Message]:
    """Yield the messages that begin in *text*; *before* and *after* are what stands around it."""
    whole = f"{text}\n{after.removeprefix(chr(10))}"
    starts = sorted(
        (found for words in _STARTS for found in words.finditer(whole)), key=lambda found: found.start()
    )
    ends = [*(start.start() for start in starts[1:]), len(whole)]
    for start, end in zip(starts, ends, strict=False):
        if start.start() >= len(text):
            return
        rest = clean(whole[start.end() : min(end, start.end() + _LONGEST)]).split("\n\n")[0]
        message = _of(start, joined(rest), f"{before}{whole[: start.start()]}"[-_LONGEST:])
        if message is not None:
            yield message


def _of(start: re.Match[str], text: str, before: str) -> Message | None:
    if start.re is _MPS:
        return _mps(start)
    if start.re is _ASYNC:
        known = _figures(_OF_ASYNC, text)
        asked = known.pop("requested", -1)
        rank = rank_in(Shaped(before[before.rfind("\n") + 1 :]))
        return Message(rank, int(start["device"] or 0), asked, known, ()) if asked >= 0 else None
    if start.re is _JAX:
        device = re.search(r"device ordinal (\d{1,3})", text[:200])
        return Message(0, int(device[1]) if device else 0, size_bytes(start[1], start[2]), {}, (), "unknown")
    return _message(start, text, before)


def _figures(phrases: dict[str, re.Pattern[str]], text: str) -> dict[str, int]:
    """Return the figures that *text* has and that can be: not what WSL gives for an unknown."""
    matches = {name: phrase.search(text) for name, phrase in phrases.items()}
    known = {name: size_bytes(match[1], match[2]) for name, match in matches.items() if match}
    return {name: n_bytes for name, n_bytes in known.items() if n_bytes < _MOST}


def _message(start: re.Match[str], text: str, before: str) -> Message:
    known = _figures(_LEGACY if "already allocated" in text or "total capacity;" in text else _MODERN, text)
    requested = size_bytes(start[2], start[3])
    device = _DEVICE.search(text)
    index = int(device[1]) if device else 0
    warnings = PATTERNS["oom_warning"].findall(before)
    if warnings and _is_same(int(warnings[-1][1]), start):
        # The allocator's own warning before it contains the same numbers unrounded.
        index, requested, known["free"], known["capacity"] = (min(int(word), _MOST) for word in warnings[-1])
    known = {name: n_bytes for name, n_bytes in known.items() if n_bytes < _MOST}
    named = [(int(pid), size_bytes(size, unit)) for pid, size, unit in _OTHERS.findall(text)]
    others = tuple((pid, n_bytes) for pid, n_bytes in named if n_bytes < _MOST)
    rank = rank_in(Shaped(before[before.rfind("\n") + 1 :]))
    return _with_own_process(Message(rank, index, requested, known, others, start["kind"].lower()))


def _with_own_process(message: Message) -> Message:
    """Return *message* with its own process told from others.

    In a container torch names the process itself by a pid that it does not know. It is the one beside which
    the device has no place for what this allocator has reserved.
    """
    known, reserved = message.known, message.reserved
    if "process" in known or reserved < 0 or not {"capacity", "free"} <= known.keys():
        return message
    used = known["capacity"] - known["free"]
    own = [(pid, n_bytes) for pid, n_bytes in message.others if used - n_bytes < reserved - _SAME_BYTES]
    if len(own) != 1:
        return message
    (pid, n_bytes), others = own[0], tuple(each for each in message.others if each != own[0])
    return message._replace(known=known | {"process": n_bytes}, others=others, pid=pid)


def _mps(found: re.Match[str]) -> Message:
    """Return the message of MPS; the allowed bytes stand for the device, as no more can be allocated."""
    words = found.groups()
    own, other, most, asked = (size_bytes(*words[at : at + 2]) for at in (0, 2, 4, 6))
    free = max(most - own - other, 0)
    known = {"allocated": own, "capacity": most, "free": free, "process": own + other}
    return Message(0, 0, asked, known, (), "mps")


def _is_same(exact: int, start: re.Match[str]) -> bool:
    """Return whether the rounded number of the message may be that of the warning."""
    unit = parse_bytes(f"1 {_unit(start[3])}")
    return abs(exact - size_bytes(start[2], start[3])) <= unit / 100


def size_bytes(number: str, unit: str) -> int:
    """Return the bytes of a number with its unit, up to a limit that no device reaches."""
    with suppress(ValueError):  # a size that 64 bits cannot hold
        return min(parse_bytes(f"{number.replace(',', '')} {_unit(unit)}"), _MOST)
    return _MOST


def _unit(word: str) -> str:
    return "B" if word.lower() == "bytes" else word
