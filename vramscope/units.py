"""Formats bytes, times, counts, shares and foreign names as text, and parses sizes.

This is the only formatter. GiB means 2³⁰ bytes everywhere.
"""

import re
from enum import Enum

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTE_SCALE = {"": 1, "B": 1} | {
    name: 1024**power
    for power, letter in enumerate("KMGTP", start=1)
    for name in (letter, f"{letter}B", f"{letter}IB")
}


_LONGEST_SIZE = 40
_PLAIN_WORD = re.compile(r"[a-z]+[ ,:;](?!=)")


def as_sentence(text: str) -> str:
    """Begin *text* with a capital letter, unless it begins with code: ``ctx.save_for_backward(…)``."""
    return text[:1].upper() + text[1:] if _PLAIN_WORD.match(text) else text


def format_bytes(n_bytes: int | float) -> str:
    """Format a size: ``1536`` → ``'1.50 KiB'``; whole bytes below 1 KiB, else three significant digits."""
    sign, value = ("-", -float(n_bytes)) if n_bytes < 0 else ("", float(n_bytes))
    for power, unit in enumerate(_BYTE_UNITS):
        scaled = value / 1024**power
        digits = 0 if unit == "B" else 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
        if float(f"{scaled:.{digits}f}") < 1024 or unit == _BYTE_UNITS[-1]:
            return f"{sign}{scaled:.{digits}f} {unit}"
    raise AssertionError("unreachable")


def format_most(n_bytes: int) -> str:
    """Format an upper bound: the next text where the one of ``format_bytes`` reads as less."""
    return _outward(n_bytes, 1)


def format_least(n_bytes: int) -> str:
    """Format a lower bound: the text before where the one of ``format_bytes`` reads as more."""
    return _outward(n_bytes, -1)


def _outward(n_bytes: int, sign: int) -> str:
    value, unit = format_bytes(n_bytes).split()
    is_inside = sign * (float(value) * _BYTE_SCALE[unit.upper()] - n_bytes) < 0
    digits = len(value.partition(".")[2])
    return f"{float(value) + sign * is_inside / 10**digits:.{digits}f} {unit}"


def format_byte_range(low: int, high: int) -> str:
    """Format two bounds: ``'1.50 KiB to 2.00 KiB'``; one size where both ends read the same."""
    both = format_bytes(low)
    return both if both == format_bytes(high) else f"{format_least(low)} to {format_most(high)}"


def parse_bytes(text: str | int) -> int:
    """Parse a size in bytes: ``'20GiB'``, ``'1.5 G'``, ``'512B'``; raises ValueError.

    Units are powers of 1024. A text without a unit is refused, as who writes ``'24'`` means GiB: only a
    number is bytes.
    """
    if not isinstance(text, str):
        text = f"{text}B"
    if len(text) > _LONGEST_SIZE:
        raise ValueError(
            f"not a size: {text[:_LONGEST_SIZE]} … is too long; write for example 512MiB or 20GiB"
        )
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].upper() not in _BYTE_SCALE:
        raise ValueError(f"not a size: {text!r}; write for example 512MiB or 20GiB")
    if not match[2] and float(match[1]):
        raise ValueError(f"not a size: {text!r} has no unit; {match[1]}GiB? Bytes are {match[1]}B")
    n_bytes = float(match[1]) * int(_BYTE_SCALE[match[2].upper()])
    if n_bytes >= 2**63:
        raise ValueError(f"not a size: {text} is above 8 EiB, which 64 bits cannot hold")
    return round(n_bytes)


TIME_UNITS = (
    (7200.0, 3600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
    (1e-3, 1e-3, "ms"),
    (1e-6, 1e-6, "µs"),
)
"""From how many seconds on a time is given in a unit, its seconds and its name; browsers are sent these."""


def format_duration(n_ns: int | float) -> str:
    """Format a duration in ns: ``1_500_000`` → ``'1.5 ms'``; minutes and hours above 120 s."""
    seconds = float(f"{n_ns / 1e9:.3g}")  # 999.9 ms read as 1 s
    for least_s, unit_s, name in TIME_UNITS:
        if seconds >= least_s:
            return f"{n_ns / 1e9 / unit_s:{'.3g' if unit_s <= 1 else ',.1f'}} {name}"
    return f"{n_ns:.0f} ns"


def time_unit(start_s: float, end_s: float) -> tuple[float, str]:
    """Return seconds and name of the unit of an axis: that of its end, but no fraction of a minute."""
    span_s = end_s - start_s
    fits = [each[1:] for each in TIME_UNITS if end_s >= each[0] and (each[1] <= 1 or span_s >= each[0])]
    return (fits or [TIME_UNITS[-1][1:]])[0]


def format_rough_duration(seconds: float) -> str:
    """Format a duration in s with as many figures as an estimate has: ``'40 min'``, ``'3 h 20 min'``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    if seconds < 5400:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 1440 else f"{round(minutes / 1440, 1):g} days"


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun: ``'1 block'``, ``'1,024 blocks'``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_name(member: Enum) -> str:
    """``Category.OPTIMIZER_STATE`` → ``'optimizer state'``: the name of an enumeration's member in words."""
    return member.name.lower().replace("_", " ")


def format_share(part: int | float, whole: int | float, digits: int = 1) -> str:
    """Format *part* as a percentage of *whole*: ``'12.5 %'``.

    A share that is above zero but rounds to zero is ``'<0.1 %'``; the text is empty if *whole* is zero.
    """
    if whole <= 0:
        return ""
    share, least = 100 * part / whole, 10**-digits
    return f"<{least:.{digits}f} %" if 0 < share < least / 2 else f"{share:.{digits}f} %"


def printable(text: str) -> str:
    """Escape every character that moves a terminal's cursor or breaks a line: names come from files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
