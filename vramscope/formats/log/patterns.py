"""What frameworks and tools call their memory, by the table ``wordings.tsv``, in which a row is a wording.

A name is written in small words. A space in it stands for any of ``space _ - / .`` or for nothing, as in
``max_memory``, ``MaxMemory`` and ``max memory``. The number follows the name, or stands where ``@`` is.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

_UNITS = r"bytes?|b|[kmgtp]i?b|(?:kilo|mega|giga)bytes|[kmgt]"
_NUMBER = r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,19}(?:\.\d{1,12})?(?:e[+-]?\d{1,2})?)"
_AFTER = rf"{_NUMBER}(?:[ ]?(?P<unit>{_UNITS})(?![a-z]))?(?![\w%]|\.\d|,\d|[ ]?%)"
_AFTER += rf"(?:(?=[ ]?/[ ]?\d{{1,9}}(?:\.\d{{1,9}})?[ ]?(?P<shared>{_UNITS})(?![a-z])))?"
_BETWEEN = (
    rf"(?:[ _/.-]{{0,2}}(?P<ending>{_UNITS})(?![a-z0-9]))?['\"`*]*(?:[ ]?[\[(](?P<bracket>{_UNITS})[\])])?"
    r"(?:\([\w:]{0,12}\))?(?:\{[^{}]{0,600}\})?(?:/(?:mean|max|last)\b)?"
    r"['\"`*]*[ \t]{0,40}(?:[:=|]|->|is|was)?[ \t|]{0,40}['\"]?"
)
_FACTORS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DEVICE = re.compile(
    r"(?:gpu|cuda|card|device|npu|xpu|rocm|index|minor_number)(?:_id|\.process)?s?"
    r"['\"]?[ :=#._\[/]{0,3}['\"]?(\d{1,2})"
    r"(?![\d.]*[ ]?(?:[kmgt]i?b|%|gpu|\d|x|\.\d))",
    re.IGNORECASE,
)
_DEVICE_WORDS = ("gpu", "cuda", "card", "device", "npu", "xpu", "rocm", "index", "minor_number")
_LARGEST = 1 << 46
"""Bytes that no device has: 64 TiB. Whatever is more is an unknown value or a mistake."""
_DIGITS = str.maketrans("123456789", "0" * 9)
_SHAPE_CHARACTERS = 2000
_SURELY_BYTES = 1 << 24
"""A whole number from here on that has no unit is in bytes: no device has that many MiB."""


class Wording(NamedTuple):
    """One way in which a program names an amount of memory."""

    origin: str
    """The framework or tool."""
    words: str
    """The name in small words."""
    column: str
    """The column of the counters without ``_bytes``; empty for what looks like memory and is not read."""
    unit: str = ""
    """The unit where neither name nor number has one; MB and GB are powers of 1024."""
    needs: str = ""
    """A pattern that the line must have beside it."""
    is_decimal: bool = False
    """Whether the unit is a power of 1000."""


class Amount(NamedTuple):
    """An amount of memory in a text."""

    wording: Wording
    n_bytes: int
    device: int
    """The device that the text names; −1 if none."""
    name: str
    """The name as the text has it."""


def _wordings() -> tuple[Wording, ...]:
    """Return the table; of rows that fit the same number the first counts."""
    lines = (Path(__file__).parent / "wordings.tsv").read_text(encoding="utf-8").splitlines()
    rows = [[*line.split("\t"), "", "", "", ""][:6] for line in lines if line and not line.startswith("#")]
    return tuple(
        Wording(origin, words, column, unit, needs, is_decimal=power == "1000")
        for origin, words, column, unit, needs, power in rows
    )


@cache
def _literals() -> tuple[tuple[Wording, tuple[str, ...]], ...]:
    """Return each row with the words that every text of it has, so that most rows cost one look."""
    return tuple(
        (row, tuple(word.lower() for word in re.findall(r"[a-zA-Z]{2,}", _without_options(row.words))))
        for row in _wordings()
    )


def _without_options(words: str) -> str:
    words = re.sub(r"\((?:\?:)?[^()]*(?:\([^()]*\)[^()]*)*\)[?*]?", " ", words)
    return re.sub(r"\[[^\]]*\](?:\{[^}]*\})?[?*+]?|\\.|[a-zA-Z]\?", " ", words)


@cache
def _expression(row: Wording) -> re.Pattern[str]:
    words = re.sub(r"(\[[^\]]*\])| ", lambda found: found[1] or r"[ _/.-]{0,2}", row.words)
    before, has_own, after = words.partition("@")
    around = f"{words}{_BETWEEN}{_AFTER}"
    if has_own:
        around = f"{before.rstrip(':')}{_BETWEEN if before else ''}{_AFTER}{after.partition('@')[0]}"
    return re.compile(rf"(?:(?<![A-Za-z0-9])|(?-i:(?<=[a-z])(?=[A-Z])))(?P<name>{around})", re.IGNORECASE)


@cache
def _need(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def amounts(text: str, *, is_cut: bool = False) -> Iterator[Amount]:
    """Yield every amount of memory in one line, in the order of the table.

    A number belongs to the first wording that takes it. Where the text *is_cut*, a number at its end may lack
    digits, and is left out.
    """
    until = len(text.rstrip(" .,")) if is_cut else -1
    taken: set[int] = set()
    for row in _rows_in(text.translate(_DIGITS) if len(text) < _SHAPE_CHARACTERS else text):
        for found in _expression(row).finditer(text):
            if found.start("number") in taken:
                continue
            taken.add(found.start("number"))
            n_bytes = _bytes(row, found)
            if row.column and 0 <= n_bytes < _LARGEST and found.end("number") != until:
                yield Amount(row, n_bytes, device_in(text[: found.start("number")]), _name(found))


def names_memory(name: str) -> bool:
    """Return whether a value of that name is an amount of memory."""
    return any(row.column for row in _rows_in(f"{name}: 0 ")[:1])


@lru_cache(maxsize=2048)
def _rows_in(shape: str) -> tuple[Wording, ...]:
    """Return the rows that a line of that shape may fit: lines of one program differ in their digits."""
    lower = shape.lower()
    if not any(each.isdigit() for each in lower):
        return ()
    return tuple(
        row
        for row, literals in _literals()
        if all(word in lower for word in literals)
        and (not row.needs or _need(row.needs).search(lower))
        and _expression(row).search(shape)
    )


def _name(found: re.Match[str]) -> str:
    name = re.sub(r"\{[^{}]*\}", "", found.string[found.start("name") : found.start("number")])
    return (
        name.strip(" \t:=|'\"`*(")[-60:]
        or found["name"][found.end("number") - found.start("name") :].strip()[-60:]
    )


def _bytes(row: Wording, found: re.Match[str]) -> int:
    number = float(found["number"].replace(",", ""))
    groups = found.groupdict()
    unit = (
        groups.get("unit") or groups.get("shared") or groups.get("bracket") or groups.get("ending") or ""
    ).lower()
    if not unit:
        is_bytes = not row.unit and number >= _SURELY_BYTES and number.is_integer()
        unit = row.unit.lower() or ("b" if is_bytes else "")
    # An integer this large is in bytes, whatever unit the wording has elsewhere.
    if (
        row.unit
        and not groups.get("unit")
        and number >= _SURELY_BYTES
        and number.is_integer()
        and row.unit != "B"
    ):
        unit = "b"
    if not unit:
        return -1
    power = "bkmgtp".index(unit[0])
    return round(number * (1000**power if row.is_decimal else _FACTORS[unit[0]]))


def device_in(text: str) -> int:
    """Return the number of the device that *text* names last; −1 if it names none."""
    lower = text[-300:].lower()
    if not any(word in lower for word in _DEVICE_WORDS):
        return -1
    found = _DEVICE.findall(lower)
    return int(found[-1]) if found else -1
