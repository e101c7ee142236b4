"""Texts of any kind and size: what they say of memory, whatever stands around it.

Error messages, memory lines of frameworks, summaries and tables of tools are read in one pass, which keeps
only what is about memory. What comes out are ordinary recordings, one for each rank and device.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import Stream, beginning, contents, file_run, naming
from vramscope.formats.log import summaries
from vramscope.formats.log.documents import CsvReader, Records, is_csv_head, parsed_line, take_json
from vramscope.formats.log.lines import PATTERNS, LineReader, TextLine, rank_in, texts
from vramscope.formats.log.oom_messages import messages
from vramscope.formats.log.patterns import amounts, names_memory
from vramscope.formats.log.places import LogMoment
from vramscope.formats.log.series import Figures
from vramscope.formats.log.tables import TableReader, may_be_table
from vramscope.formats.log.times import LOCAL_TIME, moment
from vramscope.model.recording import Run

_LARGEST_JSON_BYTES = 64 << 20
_FAILURES = ("out of memory", "allowed memory", "resource_exhausted")
_RESTART = re.compile(r"will restart worker group|restart_count[=:] ?[1-9]|restarting (?:the )?worker")
"""What torchrun writes when it begins another attempt."""


def sniff(head: bytes, path: Path) -> bool:
    """Return whether it is a text that says anything of memory; looks through it until the first figure."""
    if PATTERNS["source_code"].fullmatch(path.suffix) or not _is_text(beginning(head), head):
        return False
    try:
        about = path.stat()
        return _says_anything(path, about.st_size, about.st_mtime_ns)
    except (FormatError, OSError):
        return False


@lru_cache(maxsize=4096)
def _says_anything(path: Path, size: int, changed_ns: int) -> bool:  # noqa: ARG001 (the key of the cache)
    return bool(_collected(path, is_first_enough=True))


def _is_text(start: bytes, head: bytes) -> bool:
    if head[:4] == b"PK\x03\x04":
        return b"/data.pkl" not in head[:1000] and b"[Content_Types].xml" not in head[:1000]
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or (start[1:2] == b"\0" and start[3:4] == b"\0"):
        return True
    return bool(start) and start.count(b"\0") * 100 < len(start) and start[:4] != b"\x80\x02}q"


def read(path: Path) -> Run:
    """Read one recording for each rank and device."""
    found = _collected(path)
    if not found:
        raise FormatError(
            f"{path}: no complete message of an out-of-memory error and no figure of memory in it"
        )
    with naming(path):
        recordings = found.recordings()
    times = [int(time_ns) for each in recordings for time_ns in each.counters.time_ns if time_ns > 1 << 53]
    notes = (*found.notes, LOCAL_TIME) if times else found.notes
    return file_run(path, path.name.removesuffix(".gz"), recordings, notes, times)


def _collected(path: Path, *, is_first_enough: bool = False) -> Figures:
    found = Figures()
    document = _document(path)
    if names_memory(path.name):
        _take_metric(path, Records(found))
    if document is not None:
        take_json(document, Records(found))
    with texts(path) as files:
        for file in files:
            reader = _TextReader(found, has_document=document == {} or (bool(found) and document is not None))
            for _ in _read_text(file, reader, is_document=document is not None):
                if is_first_enough and found:
                    return found
    return found


def _take_metric(path: Path, records: Records) -> None:
    """Read a file of MLflow's store, whose name is the metric's: a time, a value and a step in each line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            cells = line.split()
            if len(cells) == 3 and len(cells[0]) == 13 and cells[0].isdigit() and line.endswith("\n"):
                records.take({path.name: cells[1], "timestamp": cells[0], "step": cells[2]})


def _document(path: Path) -> Any:
    """Return the JSON that the file is; None if it is none or large, or a notebook of texts."""
    try:
        if path.stat().st_size > _LARGEST_JSON_BYTES:
            return None
        with path.open("rb") as file:
            if not beginning(file.read(1 << 16)).lstrip().startswith((b"{", b"[")):
                return None
        value = json.loads(contents(path))
    except (OSError, ValueError, RecursionError):
        return None
    is_report = isinstance(value, dict) and "schema" in value
    return {} if is_report else None if isinstance(value, dict) and "cells" in value else value


def _read_text(file: Stream, reader: "_TextReader", *, is_document: bool = False) -> Iterator[None]:
    lines = LineReader(file)
    for line in lines:
        reader.names_gpu = lines.names_gpu and not is_document
        reader.take(line)
        lines.wants_all = reader.wants_all
        yield


class _TextReader:
    def __init__(self, found: Figures, *, has_document: bool) -> None:
        self._found, self._has_document = found, has_document
        self._tables = TableReader(found)
        self._records = Records(found)
        self._csv: CsvReader | None = None
        self._last = LogMoment()
        self.names_gpu = False

    @property
    def wants_all(self) -> bool:
        """Whether the lines that follow count whatever words they have."""
        return self._csv is not None or self._tables.wants_all

    def take(self, line: TextLine) -> None:
        if self.wants_all or not _is_plain(line.shaped.shape):
            self._take(line, line.text.lower())
        elif not self._has_document:
            self._counters(line)

    def _take(self, line: TextLine, lower: str) -> None:
        if self._csv is not None:
            self._csv = self._csv if line.is_cut or self._csv.take(line.text) else None
            if self._csv is not None:
                return
        if self._fail(line, lower) or self._has_document or summaries.is_row(line.text):
            return
        if "memory summary" in lower:
            self._summary(line)
        elif "restart" in lower and _RESTART.search(lower):
            self._found.end_attempt()
        elif "," in line.text and is_csv_head(line.text):
            self._csv = CsvReader(line.text, self._records)
        elif not self._tables.take(line):
            record = parsed_line(line.text)
            if record is None or not take_json(record, self._records, moment=self._last):
                self._counters(line)

    def _fail(self, line: TextLine, lower: str) -> bool:
        if not any(word in lower for word in _FAILURES):
            return False
        failed = list(messages(line.text, line.before, line.after))
        for message in failed:
            self._found.fail(message)
        return bool(failed)

    def _summary(self, line: TextLine) -> None:
        table = summaries.table(line.text, line.after)
        if table is not None:
            self._found.at(rank_in(line.shaped), table.device).items.append(table)

    def _counters(self, line: TextLine) -> None:
        found = amounts(line.shaped, is_cut=line.is_cut, names_gpu=self.names_gpu)
        if not found:
            return
        named = moment(line.shaped)
        self._last = named._replace(time_ns=named.time_ns or self._last.time_ns)
        for device in dict.fromkeys(each.device for each in found):
            place = self._found.at(rank_in(line.shaped), device, self._last)
            place.add([each for each in found if each.device == device], self._last)


@lru_cache(maxsize=4096)
def _is_plain(shape: str) -> bool:
    """Return whether lines of that shape are of no table, document or error."""
    lower = shape.lower()
    return (
        not any(word in lower for word in (*_FAILURES, "memory summary", "restart"))
        and not ("{" in shape and '"' in shape)
        and not summaries.is_row(shape)
        and not ("," in shape and is_csv_head(shape))
        and not may_be_table(shape)
    )


FORMAT = Format("log", sniff, read, is_asked_last=True)
