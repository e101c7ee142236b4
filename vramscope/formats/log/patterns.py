"""What frameworks and tools call their memory, by the table ``wordings.tsv``, in which a row is a wording.

A name is written in small words. A space in it stands for any of ``space _ - / .`` or for nothing, as in
``max_memory``, ``MaxMemory`` and ``max memory``. The number follows the name, or stands where ``@`` is.
"""

import re
from functools import cache, lru_cache
from typing import NamedTuple

from vramscope.formats.log.lines import PATTERNS, Shaped, places
from vramscope.model.counters import UNKNOWN
from vramscope.package_data import rows

_UNITS = r"bytes?|b|[kmgtp]i?b|[kmgtp]i|(?:kilo|mega|giga)bytes|[kmgt]"
_NUMBER = r"(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,19}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)"
_AFTER = rf"{_NUMBER}(?:[ ]?(?P<unit>{_UNITS})(?![a-z]))?(?![\w%]|\.\d|,\d|[ ]?%)"
_AFTER += rf"(?:(?=[ ]?/[ ]?\d{{1,9}}(?:\.\d{{1,9}})?[ ]?(?P<shared>{_UNITS})(?![a-z])))?"
_OCCASION = (
    r"(?P<occasion>[ ](?:after|at|before|during|for|in|on|while)(?:[ ](?:cuda:\d{1,2}|[\w.#-]{1,20})){1,4}"
    r"|[ ]?\([\w +/-]{1,40}\))(?=[ ]?[:=|])"
)
"""When a figure was taken, between its name and a colon, as in "Peak VRAM for batch 8: 7 GB"."""
_BETWEEN = (
    rf"(?:[ _/.-]{{0,2}}(?P<ending>{_UNITS})(?![a-z0-9]))?['\"`*]*(?:[ ]?[\[(](?P<bracket>{_UNITS})[\])])?"
    r"(?:\([\w:]{0,12}\))?(?:\{[^{}]{0,600}\})?(?:/(?:mean|max|last)\b)?"
    rf"(?:{_OCCASION})?"
    r"['\"`*]*[ \t]{0,40}(?:[:=|│┃]|->|is|was)?[ \t|*]{0,40}['\"]?(?:np\.float\d\d\(|tensor\()?"
    rf"(?(occasion)(?=\d[\d.,]{{0,20}}[ ]?(?:/[ ]?\d[\d.,]{{0,20}}[ ]?)?(?:{_UNITS})(?![a-z])))"
)
_FACTORS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DEVICE_WORDS = ("gpu", "cuda", "card", "device", "npu", "xpu", "rocm", "index", "minor_number")
_OTHERS = re.compile(
    r"(?<![a-z])(max(?:imum)?|peak|highest|min(?:imum)?|avg|average|mean|estimated|theoretical|expected|required|"
    r"predicted|needed)[ _/.-]{0,2}\Z",
    re.IGNORECASE,
)
"""Words before a name that make something else of it: a mean, an estimate, a peak."""
_LARGEST = 1 << 46
"""Bytes that no device has: 64 TiB. Whatever is more is an unknown value or a mistake."""
_SHAPE_CHARACTERS = 2000
"""A longer line has a shape of its own."""
_OF_LOG = "<log>"
_WITHOUT_DEVICE = "a line without a device, in a log that names a GPU"
_LEAST_OF_LOG_BYTES = 64 << 20
"""A peak that a line without a device names is the GPU's from here on: what tracemalloc prints is smaller."""
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
    """A pattern that the line must have beside it; with ``<log>`` it is enough that the log names a GPU."""
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


@cache
def table_rows() -> list[list[str]]:
    """Return the rows of the table."""
    return [[*row, "", "", "", ""][:6] for row in rows(__file__, "wordings.tsv")]


def column_words() -> dict[str, str]:
    """Return what each column of the table counts."""
    return {name: words for kind, name, words, *_ in table_rows() if kind == "column"}


def _wordings() -> tuple[Wording, ...]:
    """Return the table; of rows that fit the same number the first counts."""
    rows = [row for row in table_rows() if not re.match(r"column$|head$|note$|oom_", row[0])]
    return tuple(
        Wording(origin, words, column, unit, needs, is_decimal=power == "1000")
        for origin, words, column, unit, needs, power in rows
    )


@cache
def _literals() -> tuple[tuple[Wording, tuple[str, ...]], ...]:
    """Return each row with the words that every text of it has, so that most rows cost one look."""
    return tuple(
        (row, tuple(word.lower() for word in re.findall(r"[^\W\d_]{2,}", _without_options(words))))
        for row in _wordings()
        for words in [row.words if "|" in row.needs or _OF_LOG in row.needs else f"{row.words} {row.needs}"]
    )


@cache
def _rows_by_word() -> dict[str, list[int]]:
    """Return the places of the rows by the longest word that each must have."""
    rows: dict[str, list[int]] = {}
    for place, (_, literals) in enumerate(_literals()):
        rows.setdefault(max(literals, key=len, default=""), []).append(place)
    return rows


@cache
def _any_word() -> re.Pattern[str]:
    """Return what finds a word of a row that is read; most texts have none."""
    words = {max(literals, key=len) for row, literals in _literals() if row.column}
    return re.compile("|".join(sorted(words)))


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


class _AmountPlace(NamedTuple):
    """Where lines of one shape have an amount."""

    wording: Wording
    number: int
    """The place of the number; of one with an exponent the next one is that."""
    exponent: str
    unit: str
    device: int
    """The place of the device's number; −1 if none."""
    name: str
    """The name, where it has no number."""
    span: tuple[int, int]
    end: int


def amounts(line: Shaped, *, is_cut: bool = False, names_gpu: bool = False) -> list[Amount]:
    """Return every amount of memory in one line, in the order of the table.

    A number belongs to the first wording that takes it. Where the text *is_cut*, a number at its end may lack
    digits, and is left out. Where the log *names_gpu*, a "peak memory" is that of the GPU.
    """
    shape = line.shape
    known = (_places_in if len(shape) < _SHAPE_CHARACTERS else _places_in.__wrapped__)(shape)
    ends = [len(shape.rstrip(" .,")), len(shape.rstrip(" .,abcdefgiklmtyBKMGT"))] if is_cut and known else []
    found = []
    for place in known:
        is_of_log = place.wording.origin == _WITHOUT_DEVICE
        if is_of_log and not names_gpu:
            continue
        least_bytes = _LEAST_OF_LOG_BYTES if is_of_log else 0
        number = float(line.number(place.number).replace(",", ""))
        if place.exponent:
            number *= 10.0 ** int(place.exponent + line.number(place.number + 1))
        n_bytes = _bytes(place.wording, number, place.unit)
        if least_bytes <= n_bytes < _LARGEST and place.end not in ends[: 1 if place.unit else 2]:
            device = int(line.number(place.device).partition(",")[0]) if place.device >= 0 else UNKNOWN
            name = place.name or _clean_name(line.text[slice(*map(line.at, place.span))])
            found.append(Amount(place.wording, n_bytes, device, name))
    return found


@lru_cache(maxsize=4096)
def _places_in(shape: str) -> tuple[_AmountPlace, ...]:
    """Return where a line of that shape has its amounts."""
    rows = _rows_in(shape)
    numbers, taken = places(shape) if rows else {}, set[int]()
    known = []
    for row in rows:
        for found in _expression(row).finditer(shape):
            start = found.start("number")
            before = _OTHERS.search(found.string, max(found.start() - 20, 0), found.start())
            is_peak = before is not None and before[1].lower()[:3] in ("max", "pea", "hig")
            if is_peak and row.column in ("allocated", "reserved", "active", "requested"):
                continue  # a row that names the peak takes it
            if start not in taken and start in numbers and row.column and (before is None or is_peak):
                known.append(_place(row, found, numbers))
            taken.add(start)
    return tuple(known)


def _place(row: Wording, found: re.Match[str], numbers: dict[int, int]) -> _AmountPlace:
    start, groups = found.start("number"), found.groupdict()
    units = (groups.get(each) for each in ("unit", "shared", "bracket", "ending"))
    device = _device_at(found.string[:start])
    name = found.start("name"), start
    if not found.string[slice(*name)].strip(" \t:=|'\"`*("):
        name = found.end("number"), found.end("name")
    exponent = re.search("e([+-]?)", found["number"])
    return _AmountPlace(
        row if _has_needs(row, found.string) else row._replace(origin=_WITHOUT_DEVICE),
        numbers[start],
        f"{exponent[1]}0" if exponent else "",
        next((unit for unit in units if unit), "").lower(),
        numbers.get(device, UNKNOWN),
        "" if "0" in found.string[slice(*name)] else _clean_name(found.string[slice(*name)]),
        name,
        found.end("number"),
    )


@lru_cache(maxsize=1 << 14)
def names_memory(name: str) -> bool:
    """Return whether a value of that name is an amount of memory."""
    shape = Shaped(f"{name}: 0 ").shape if _any_word().search(name.lower()) else ""
    return any(row.column and _has_needs(row, shape) for row in _rows_in(shape)[:1])


def _rows_in(shape: str) -> tuple[Wording, ...]:
    """Return the rows that a line of that shape fits."""
    lower = shape.lower()
    if "0" not in lower or not _any_word().search(lower):
        return ()
    likely_places = sorted(place for word, rows in _rows_by_word().items() if word in lower for place in rows)
    likely = [
        row
        for row, words in map(_literals().__getitem__, likely_places)
        if all(word in lower for word in words)
    ]
    if not any(row.column for row in likely):
        return ()
    return tuple(
        row
        for row in likely
        if (_OF_LOG in row.needs or _has_needs(row, shape)) and _expression(row).search(shape)
    )


def _has_needs(row: Wording, shape: str) -> bool:
    return not row.needs or re.search(row.needs, shape, re.IGNORECASE) is not None


def _clean_name(name: str) -> str:
    return re.sub(r"\{[^{}]*\}", "", name).strip(" \t:=|'\"`*(")[-60:]


def _bytes(row: Wording, number: float, unit: str) -> int:
    is_surely_bytes = number >= _SURELY_BYTES and number.is_integer()
    # An integer this large is in bytes, whatever unit the wording has elsewhere.
    power = "b" if is_surely_bytes and not unit else (unit or row.unit.lower())[:1]
    if not power:
        return -1
    return round(number * (1000 ** "bkmgtp".index(power) if row.is_decimal else _FACTORS[power]))


def device_in(text: str) -> int:
    """Return the number of the device that *text* names last; −1 if it names none."""
    at = _device_at(text)
    return int(re.split(r"\D", text[at:], maxsplit=1)[0]) if at >= 0 else UNKNOWN


def _device_at(text: str) -> int:
    start = max(len(text) - 300, 0)
    lower = text[start:].lower()
    found = list(PATTERNS["device"].finditer(lower)) if any(word in lower for word in _DEVICE_WORDS) else []
    return start + found[-1].start(1) if found else UNKNOWN
