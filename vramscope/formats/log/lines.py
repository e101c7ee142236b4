"""A text of any size as a stream of its lines about memory, whatever stands around them."""

import codecs
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from vramscope.errors import FormatError
from vramscope.formats._file import UTF8_MARK, Stream, opened
from vramscope.model.counters import UNKNOWN
from vramscope.package_data import rows

PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(words) for name, words in rows(__file__, "patterns.tsv")
}
"""The regular expressions of ``patterns.tsv``."""
CHUNK_BYTES = 1 << 20
AROUND_BYTES = 8 << 10
"""What is seen of the text before and after a line: the longest message, and the head of a table."""
_LONGEST_BYTES = 32 << 10
"""The longest piece of one line that is looked at as a whole."""
_WORDS = (
    *(b"mem", b"max_ma", b"vram", b"alloc", b"reserved", b"cached", b"mib", b"gib", b"gb", b"fb", b"bytes"),
    *(b"# gpu", b"# date", b"restart", b"mb |", b"inuse:", "显存".encode(), "内存".encode()),
)
"""Words of which every line about memory has one, in small letters."""
_FAILURES = (b"out of memory", b"allowed memory", b"resource_exhausted")
_GPU = re.compile(PATTERNS["gpu"].pattern.encode())
_GPU_WORDS = tuple(
    b"cuda nvid nccl vram rocm gpu devi usin rtx tesl gefo a100 h100 h200 b200 v100 l40 mi30".split()
)
"""What each of these begins with."""
_MOST_PIECES = 64
"""The pieces of one line that are looked at for figures; beyond them only errors count."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ZEROS = str.maketrans("123456789", "0" * 9)
_NUMBER = re.compile(r"(\d+(?:[.,]\d+)*)", re.ASCII)
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13)
"""Lengths of whole numbers that some pattern tells apart: of dates, times, devices, ranks and seconds."""
_LONGEST = 20
"""Digits from which on a number has a shape of its own, as no pattern takes them."""
_AT_ONCE_BYTES = 1 << 15
"""What is searched at once: few enough bytes for the processor's cache."""


class TextLine:
    """One line about memory, clean, with the text around it."""

    __slots__ = ("_around", "_inner", "is_cut", "shaped", "text")

    def __init__(
        self, text: str, around: tuple[bytes, int, int], inner: tuple[str, int, int], *, is_cut: bool
    ) -> None:
        self.text, self.shaped = text, Shaped(text)
        self._around, self._inner = around, inner
        self.is_cut = is_cut
        """Whether the text ends with this line, without an end of line."""

    @property
    def before(self) -> str:
        """The text before it, as it is in the file."""
        data, start, _ = self._around
        whole, at, _ = self._inner
        own = f"\n{whole[max(at - 1 - AROUND_BYTES, 0) : at - 1]}"[-AROUND_BYTES:] if at else ""
        return data[max(start - AROUND_BYTES, 0) : start].decode("utf-8", "replace") + own

    @property
    def after(self) -> str:
        """The text after it."""
        data, _, end = self._around
        whole, _, at = self._inner
        return whole[at : at + AROUND_BYTES] + data[end : end + AROUND_BYTES].decode("utf-8", "replace")


def rank_in(line: "Shaped") -> int:
    """Return the rank that a line names; 0 if it names none."""
    place = _rank_in(line.shape)
    return int(line.number(place).partition(",")[0]) if place >= 0 else 0


@lru_cache(maxsize=4096)
def _rank_in(shape: str) -> int:
    """Return the place of the rank in lines of that shape; −1 if they name none."""
    own = (words.search(shape[:400]) for name, words in PATTERNS.items() if name.startswith("rank"))
    found = next(filter(None, own), None)
    return places(shape).get(found.start(1), UNKNOWN) if found else UNKNOWN


def clean(text: str) -> str:
    """Return *text* without colours and control characters; an escaped end of line is one."""
    if text.isprintable() and "\\" not in text:
        return text
    text = PATTERNS["escapes"].sub("", text) if "\x1b" in text or "\\" in text else text
    return _CONTROL.sub(
        " ", text.replace("\\r", "\n").replace("\\n", "\n").replace('\\"', '"').replace("\\t", " ")
    )


def joined(text: str) -> str:
    """Return the lines of a wrapped message as one, without what a launcher or notebook put around."""
    return " ".join(
        PATTERNS["suffix"].sub("", PATTERNS["prefix"].sub("", line)) for line in clean(text).split("\n")
    )


@contextmanager
def texts(path: Path) -> Iterator[Iterator[Stream]]:
    """Open a file as its texts: itself, unpacked where it is a gzip, or the files in it where it is a zip."""
    with opened(path) as file:
        if isinstance(file, io.BufferedReader) and file.peek(4)[:4] == b"PK\x03\x04":
            yield _members(path)
        else:
            yield iter([file])


def _members(path: Path) -> Iterator[Stream]:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist()[:1000]:
                if not name.endswith("/"):
                    with archive.open(name) as file:
                        yield file
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, zlib.error) as error:
        raise FormatError(
            f"{path}: damaged or locked zip ({error}): unpack it, and open what was in it"
        ) from None


@cache
def _letters(words: tuple[bytes, ...]) -> list[bytes]:
    """Return a table for each of the first four letters: for each byte the words that have it, as bits.

    Several words share a bit, as a byte has eight.
    """
    return [
        bytes(
            sum({1 << at % 8 for at, word in enumerate(words) if word[place : place + 1] in (b"", letter)})
            for letter in (bytes([each]) for each in range(256))
        )
        for place in range(4)
    ]


def _beginnings(words: tuple[bytes, ...], small: bytes) -> Iterator[int]:
    """Yield where one of *words* may begin in a text in small letters, all of them sought at once."""
    for start in range(0, len(small), _AT_ONCE_BYTES):
        n_bytes = min(_AT_ONCE_BYTES, len(small) - start)
        begun = np.full(n_bytes, 255, dtype="u1")
        for place, table in enumerate(_letters(words), start):
            part = small[place : place + n_bytes].ljust(n_bytes, b"\n")
            begun &= np.frombuffer(part.translate(table), dtype="u1")
        yield from (np.flatnonzero(begun != 0) + start).tolist()


def pieces(file: Stream) -> Iterator[bytes]:
    """Yield a text as UTF-8 in pieces, with ``\\n`` for every end of line."""
    first = file.read(CHUNK_BYTES)
    wide = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(first[:2])
    if wide is None and first[1:2] == b"\0" and first[3:4] == b"\0":
        wide = "utf-16-le"
    decoder = codecs.getincrementaldecoder(wide)("replace") if wide else None
    piece = first
    is_first = True
    while piece:
        text = decoder.decode(piece).encode() if decoder else piece
        text, is_first = text.removeprefix(UTF8_MARK) if is_first else text, False
        yield text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text
        piece = file.read(CHUNK_BYTES)


class LineReader:
    """Goes through one text and yields the lines about memory.

    The first line is yielded whatever it is: it may be the head of a table. While ``wants_all`` is set, every
    line is, as below such a head.
    """

    def __init__(self, file: Stream) -> None:
        self._pieces = pieces(file)
        self._data = b""
        self._at = 0
        """Where the part begins that was not looked at; before it lies what was."""
        self._hit, self._beginnings = -1, _beginnings(_WORDS, b"")
        """The latest word that a line about memory has, and where others may begin after it."""
        self._n_pieces = 0
        """The pieces of the present line that were looked at."""
        self.wants_all = True
        self.names_gpu = False
        """Whether the text names a GPU until the end of the piece that is looked at."""

    def __iter__(self) -> Iterator[TextLine]:
        is_end = False
        while not is_end:
            piece = next(self._pieces, b"")
            is_end = not piece
            keep = max(self._at - AROUND_BYTES, 0)
            self._data, self._at = self._data[keep:] + piece, self._at - keep
            self.names_gpu = self.names_gpu or any(
                _GPU.match(small, at) for small in [piece.lower()] for at in _beginnings(_GPU_WORDS, small)
            )
            yield from self._lines(self._ready(is_end=is_end), is_end=is_end)

    def _ready(self, *, is_end: bool) -> int:
        """Return up to where lines are complete, with enough after them."""
        if is_end:
            return len(self._data)
        last = self._data.rfind(b"\n", self._at, max(len(self._data) - AROUND_BYTES, self._at))
        if last < 0 and len(self._data) - self._at > CHUNK_BYTES:
            return len(self._data) - AROUND_BYTES  # a line longer than a piece is looked at in pieces
        return last + 1 if last >= 0 else self._at

    def _lines(self, until: int, *, is_end: bool) -> Iterator[TextLine]:
        small = self._data[self._at : until].lower()
        offset = self._at
        self._hit, self._beginnings = -1, _beginnings(_WORDS, small)
        while self._at < until:
            hit = self._at if self.wants_all else self._next(small, offset)
            if hit >= until:
                break
            if self._n_pieces > _MOST_PIECES and not any(
                word in small[hit - offset : hit - offset + 200] for word in _FAILURES
            ):
                hit = self._passed(small, offset)
                if hit < 0:
                    break
            begin = max(self._data.rfind(b"\n", self._at, hit) + 1, self._at)
            if hit - begin > _LONGEST_BYTES // 2:
                begin = hit - _LONGEST_BYTES // 32
            found = self._data.find(b"\n", hit, until)
            end = min(found if found >= 0 else until, begin + _LONGEST_BYTES)
            yield from self._line(begin, end, is_cut=is_end and found < 0 and end == until)
            self._n_pieces = 0 if end == found else self._n_pieces + 1
            self._at = end + (end == found)
        self._at = until

    def _passed(self, small: bytes, offset: int) -> int:
        """Return where to go on in a long line: at its end, or at an error in it; −1 if neither is here."""
        at = self._at - offset
        found = [place for word in (*_FAILURES, b"\n") if (place := small.find(word, at)) >= 0]
        if not found:
            return -1
        if small[min(found) : min(found) + 1] == b"\n":
            self._n_pieces = 0
        return min(found) + offset

    def _next(self, small: bytes, offset: int) -> int:
        """Return where the next word is that a line about memory has; beyond the end if there is none."""
        if self._hit < self._at:
            least = self._at - offset
            own = (at for at in self._beginnings if at >= least and small.startswith(_WORDS, at))
            self._hit = next(own, len(self._data)) + offset
        return self._hit

    def _line(self, start: int, end: int, *, is_cut: bool) -> Iterator[TextLine]:
        around = (self._data, start, end)
        whole = clean(self._data[start:end].decode("utf-8", "replace"))
        start = 0
        for text in whole.split("\n"):
            inner = whole, start, start + len(text)
            start += len(text) + 1
            yield TextLine(text, around, inner, is_cut=is_cut and start > len(whole))


class Shaped:
    """A text with its shape: the text with zeros for its digits, and shorter numbers of the same form."""

    __slots__ = ("_numbers", "_parts", "shape", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _NUMBER.split(text.translate(_ZEROS))
        parts[1::2] = map(_short, parts[1::2])
        self._parts, self._numbers = parts, list[str]()
        self.shape = "".join(parts)

    def number(self, place: int) -> str:
        """Return the number at that place, as the text has it."""
        self._numbers = self._numbers or _NUMBER.findall(self.text)
        return self._numbers[place]

    def at(self, position: int) -> int:
        """Return the position in the text of one in the shape that is not within a number."""
        there = here = 0
        for place, part in enumerate(self._parts):
            if there + len(part) > position:
                break
            there += len(part)
            here += len(self.number(place // 2)) if place % 2 else len(part)
        return here + position - there


@lru_cache(maxsize=1 << 14)
def _short(zeros: str) -> str:
    if "," in zeros or zeros.count(".") > 1:
        return zeros
    whole, dot, fraction = zeros.partition(".")
    if len(whole) < _LONGEST:
        whole = whole[: max(length for length in _LENGTHS if length <= len(whole))]
    return whole + dot + (fraction[:1] * 2 if len(fraction) <= _LONGEST else fraction)


def places(shape: str) -> dict[int, int]:
    """Return the place of each number in a shape by its position."""
    return {found.start(): place for place, found in enumerate(_NUMBER.finditer(shape))}
