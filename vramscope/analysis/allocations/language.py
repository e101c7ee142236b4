"""The language of searches: ``model.py:13 category:activation size>64MiB life<2s -"relu_"``.

A search is a list of terms, all of which must hold; ``-`` in front of a term excludes what it finds. Each
term knows its place in the text, so that an error points at it.
"""

import re
from dataclasses import dataclass

from vramscope.analysis.lines import short_file
from vramscope.errors import UsageError
from vramscope.model.codes import Code
from vramscope.model.stacks import Frame
from vramscope.units import parse_bytes

MAX_LETTERS = 2000
"""Longest text of a search; a longer one is refused."""


class Field(Code):
    """The property of an allocation that a term looks at."""

    WORD = "word"
    """A part of a function, file or module path, or the name of a category."""
    EXACT = "exact"
    """A whole function name, file path or file name, written in quotes."""
    PLACE = "place"
    """A line of a file anywhere in the stack: ``train.py:13`` or ``train.py:13-20``."""
    CATEGORY = "category"
    PHASE = "phase"
    """The innermost phase when it was allocated."""
    MODULE = "module"
    """A module path; ``*`` stands for any letters, and a path in quotes leaves out the modules in it."""
    STEP = "step"
    """The step in which it was allocated: ``step:3`` or ``step:3..7``."""
    FILE = "file"
    FUNCTION = "function"
    STREAM = "stream"
    ANNOTATION = "annotation"
    """A part of a text that the program put on it."""
    LINE = "line"
    """The line of the program that allocated it, which tables name: ``line:train.py:13``."""
    LIVE = "live"
    """Allocated at an instant: ``live:1200`` is after 1,200 events, or ``live:peak``, ``live:end``."""
    ADDRESS = "address"
    """An address in its block: ``address:0x7f5e40000000``."""
    SIZE = "size"
    """Bytes of the block."""
    LIFE = "life"
    """Time from the allocation to the free."""
    ALIVE = "alive"
    """Never freed."""
    BEFORE = "before"
    """Allocated before the recording."""


_FLAGS = frozenset({Field.ALIVE, Field.BEFORE})
_NAMELESS = _FLAGS | {Field.SIZE, Field.LIFE, Field.WORD, Field.EXACT, Field.PLACE}
_FIELDS = tuple(field for field in Field if field not in _NAMELESS)
"""Fields that are followed by a colon and a value."""


class SearchError(UsageError):
    """A search that cannot be understood; ``start`` and ``end`` are the letters of *text* that are wrong."""

    def __init__(self, reason: str, text: str, start: int, end: int) -> None:
        """Report *reason* with the part of *text* that it is about."""
        super().__init__(f"{text[start:end] or text!r}: {reason}")
        self.reason, self.text, self.start, self.end = reason, text, start, end


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a search."""

    field: Field
    value: str = ""
    """Text to find, in lower case unless it was quoted."""
    low: float = float("-inf")
    """Lowest bytes, nanoseconds, step, line, stream, instant or address that fits."""
    high: float = float("inf")
    """Highest value that fits."""
    is_excluded: bool = False
    start: int = 0
    """First letter in the text."""
    end: int = 0


_TOKEN = re.compile(r'-?"[^"]*"?|\S+')
_LIMIT = re.compile(r"(?:(size|life)(?=[<>=])|(?=[<>=]+\d))(<=|>=|<|>|=)(.*)", re.IGNORECASE)
_PLACE = re.compile(r"(?!line:)(.+\.\w+):(\d{1,9})(?:-(\d{1,9}))?")
_NUMBERS = {
    Field.LIVE: (
        re.compile(r"\d{1,15}|peak|end"),
        "the number of events before it, such as live:1200, or live:peak or live:end",
    ),
    Field.ADDRESS: (
        re.compile(r"0[xX][0-9a-fA-F]{1,16}|\d{1,19}"),
        "a number, such as address:0x7f5e40000000",
    ),
}
_NAMED = re.compile(r"([a-z_]+):(?!:)(.*)", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,15})?(\.\.)?(\d{1,15})?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|min|h)?")
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}


def parse(text: str | None) -> tuple[Term, ...]:
    """Return the terms of a search.

    None and an empty text have no terms, and find everything. Raises SearchError if a term is not understood,
    which says which letters.
    """
    text = text or ""
    if len(text) > MAX_LETTERS:
        raise SearchError(f"longer than {MAX_LETTERS:,} letters", text, MAX_LETTERS, len(text))
    return tuple(_term(match.group(), text, match.start(), match.end()) for match in _TOKEN.finditer(text))


def line_term(frame: Frame) -> str:
    """Return a line as the field ``line`` takes it, ``net/model.py:13``; '' where it has no such name."""
    name = short_file(frame.file.replace("\\", "/"))
    return f"{name}:{frame.line}" if frame.line and re.fullmatch(r"\S+\.\w+", name) else ""


def _term(token: str, text: str, start: int, end: int) -> Term:
    is_excluded = token.startswith("-") and len(token) > 1
    body = token[1:] if is_excluded else token
    known = (text, start, end)
    field, value, low, high = _meaning(body, known)
    return Term(field, value, low, high, is_excluded, start, end)


_Meaning = tuple[Field, str, float, float]
_ALL = (float("-inf"), float("inf"))


def _meaning(body: str, known: tuple[str, int, int]) -> _Meaning:
    if body.startswith('"'):
        if not body.endswith('"') or len(body) < 3:
            raise SearchError('a quoted name needs letters and a closing "', *known)
        return Field.EXACT, body[1:-1], *_ALL
    if body.lower() in _FLAGS:
        return Field(body.lower()), "", *_ALL
    limit = _LIMIT.fullmatch(body)
    if limit:
        return _limit(Field((limit[1] or "size").lower()), limit[2], limit[3], known)
    place = _PLACE.fullmatch(body)
    if place:
        return Field.PLACE, place[1].lower(), float(place[2]), float(place[3] or place[2])
    named = _NAMED.fullmatch(body)
    if named:
        return _named(named[1].lower(), named[2], known)
    return Field.WORD, body.lower(), *_ALL


def _limit(field: Field, sign: str, value: str, known: tuple[str, int, int]) -> _Meaning:
    example = "64MiB" if field is Field.SIZE else "2s"
    try:
        # A size without a unit is in bytes.
        n_bytes = int(value) if value.isdecimal() else value
        number = float(parse_bytes(n_bytes)) if field is Field.SIZE else _nanoseconds(value)
    except ValueError:
        raise SearchError(f"{field} needs a number, such as {field}{sign}{example}", *known) from None
    # Sizes and times are whole numbers.
    low = {">": number + 0.5, ">=": number, "=": number}.get(sign, _ALL[0])
    high = {"<": number - 0.5, "<=": number, "=": number}.get(sign, _ALL[1])
    return field, "", low, high


def _nanoseconds(text: str) -> float:
    match = _DURATION.fullmatch(text.lower())
    if match is None:
        raise ValueError(text)
    return float(match[1]) * _NS[match[2] or "s"]


def _named(name: str, value: str, known: tuple[str, int, int]) -> _Meaning:
    if name not in _FIELDS:
        fields = ", ".join(f"{field}:" for field in _FIELDS)
        raise SearchError(
            f"there is no field of this name, but {fields} size, life, alive and before", *known
        )
    field = Field(name)
    if field in (Field.STEP, Field.STREAM):
        match = _RANGE.fullmatch(value)
        if match is None or not value.strip("."):
            raise SearchError(f"{field} needs a number or a range, such as {field}:3 or {field}:3..7", *known)
        low = float(match[1]) if match[1] else _ALL[0]
        high = float(match[3]) if match[3] else _ALL[1] if match[2] else low
        return field, "", low, high
    if not value:
        raise SearchError(f"{field}: needs a value", *known)
    if field is Field.LINE:
        place = _PLACE.fullmatch(value)
        if place is None or place[3]:
            raise SearchError("line needs a file and a number, such as line:train.py:13", *known)
        return field, place[1].lower(), float(place[2]), float(place[2])
    if field in _NUMBERS:
        pattern, example = _NUMBERS[field]
        if pattern.fullmatch(value) is None:
            raise SearchError(f"{field} needs {example}", *known)
        return field, value, *_ALL
    return field, value.lower(), *_ALL
