"""Tables that tools print: figures in columns, under a head or in boxes, without a name beside them."""

import re
from typing import NamedTuple

from vramscope.formats.log.lines import PATTERNS, TextLine
from vramscope.formats.log.patterns import Amount, Wording, table_rows
from vramscope.formats.log.places import LogMoment
from vramscope.formats.log.series import Figures
from vramscope.formats.log.times import time_ns
from vramscope.model.counters import UNKNOWN

_MIB = 1 << 20


def _is(origin: str, column: str, name: str, n_bytes: int, device: int = UNKNOWN) -> Amount:
    return Amount(Wording(origin, name, column), n_bytes, device, name)


class _Head(NamedTuple):
    origin: str
    columns: dict[str, int]
    """The place by the name in small letters."""
    width: int


_COLUMNS = {row[1]: row[2] for row in table_rows() if row[0] == "head"}
_ORIGINS = {row[1]: row[3] for row in table_rows() if row[0] == "head"}
"""What columns of dmon, dcgmi dmon and amd-smi monitor are, and the tool whose table has one of that name."""


def may_be_table(text: str) -> bool:
    """Return whether *text* may begin or be a part of a table; its numbers do not matter."""
    return _head_of(text) is not None or PATTERNS["marks"].search(text) is not None


class TableReader:
    """Reads the tables in a text, line by line."""

    def __init__(self, into: Figures) -> None:
        self._into = into
        self._head: _Head | None = None
        self._moment = LogMoment()
        self._buses: dict[str, int] = {}
        self._in_epochs = False

    @property
    def wants_all(self) -> bool:
        """Whether the lines that follow are rows of a table."""
        return self._head is not None or self._in_epochs

    def take(self, line: TextLine) -> bool:
        """Read *line* if it is part of a table; return whether it is."""
        text = line.text
        if self._row(text, is_cut=line.is_cut):
            return True
        lower = text.lower()
        head = _head_of(text) if "gpu" in lower or "entity" in lower else None
        self._head = head or (self._head if self._head is not None and _is_units(text) else None)
        if self._head is not None:
            return True
        if self._epochs(text, lower) or ("mib" in lower and "|" in text and self._box(line)):
            return True
        if " mb" in lower and (found := PATTERNS["gpustat"].search(text)):
            return self._gpustat(found, line)
        if "nvidia-smi" in lower:
            before = line.before
            self._moment = LogMoment(time_ns(before[-200:].rpartition("\n\n")[2]) or time_ns(before[-120:]))
            return "driver version" in lower
        return PATTERNS["section"].search(text) is not None and self._section(line)

    def _epochs(self, text: str, lower: str) -> bool:
        if "gpu_mem" in lower and "epoch" in lower and not any(each.isdigit() for each in text):
            self._in_epochs = True
            return True
        found = PATTERNS["ultralytics"].match(text) if self._in_epochs else None
        if found is None:
            self._in_epochs = self._in_epochs and not text.strip()
            return False
        n_bytes = round(float(found[3]) * (1 << 30 if found[4] == "G" else _MIB))
        amount = _is("ultralytics", "reserved", "GPU_mem", n_bytes)
        self._into.at(0, 0).add([amount], LogMoment(step=int(found[1])))
        return True

    def _row(self, text: str, *, is_cut: bool) -> bool:
        head = self._head
        if head is None:
            return False
        if text.lstrip().startswith("#") or _is_units(text):
            return _head_of(text) is None
        cells = re.sub(r"\bGPU[ ]+(?=\d)|(?<=\d)[ ](?:MB|W|%|MHz|°C)(?=\s|$)", "", text).split()
        if len(cells) < head.width - 1 or not cells[head.columns.get("gpu", 0)].isdigit():
            return False
        device = int(cells[head.columns.get("gpu", 0)])
        when = " ".join(cells[at] for name, at in head.columns.items() if name in ("date", "time"))
        moment = LogMoment(time_ns(when)) if when else self._moment
        found = [
            _is(head.origin, kind, name, int(cells[at]) * _MIB, device)
            for name, at in head.columns.items()
            if (kind := _COLUMNS.get(name)) and cells[at].isdigit() and not (is_cut and at == len(cells) - 1)
        ]
        if "pid" in head.columns:
            self._process(device, cells, head, moment)
        else:
            self._into.at(0, device).add(found, moment)
        return True

    def _process(self, device: int, cells: list[str], head: _Head, moment: LogMoment) -> None:
        pid, size = cells[head.columns["pid"]], cells[head.columns["fb"]]
        if pid.isdigit() and size.isdigit():
            amount = _is(head.origin, "process_used", "fb", int(size) * _MIB)
            self._into.at(0, device).process(int(pid), cells[-1]).add([amount], moment, int(pid))

    def _box(self, line: TextLine) -> bool:
        found = PATTERNS["box"].search(line.text)
        if found is not None:
            above = list(PATTERNS["gpu_line"].finditer("\n".join(line.before.rstrip("\n").split("\n")[-1:])))
            if not above:
                return True
            device = int(above[-1][1])
            place = self._into.at(0, device)
            place.name = place.name or re.sub(r"\s+(On|Off|N/A)?$", "", above[-1][2]).rstrip(".")
            found_bytes = [
                _is("nvidia-smi", column, "Memory-Usage", int(found[at]) * _MIB)
                for at, column in ((1, "device_used"), (2, "device_total"))
            ]
            place.add(found_bytes, self._moment, busy=int(found[3]) if found[3] else UNKNOWN)
            return True
        process = PATTERNS["process_box"].search(line.text)
        if process is not None:
            place = self._into.at(0, int(process[1]))
            place.other(int(process[2]), process[4].strip(), int(process[5]) * _MIB)
        return process is not None or (line.text.count("|") >= 2 and "MiB /" in line.text)

    def _gpustat(self, found: re.Match[str], line: TextLine) -> bool:
        place = self._into.at(0, int(found[1]))
        place.name = place.name or found[2]
        when = LogMoment(time_ns(line.before[-2000:].rpartition("\n[0]")[0][-120:] or line.before[-120:]))
        amounts = [
            _is("gpustat", column, column.removeprefix("device_"), int(found[at]) * _MIB)
            for at, column in ((4, "device_used"), (5, "device_total"))
        ]
        place.add(amounts, when, busy=int(found[3]) if found[3] else UNKNOWN)
        return True

    def _section(self, line: TextLine) -> bool:
        """Read the memory of a device in what ``nvidia-smi -q`` writes, as text or XML."""
        buses = PATTERNS["bus"].findall(line.before)
        device = self._buses.setdefault(buses[-1] if buses else "", len(self._buses))
        rows, text = dict[str, int](), line.after.lstrip("\n")
        while (row := PATTERNS["section_row"].match(text)) is not None:
            rows[row[1].lower()], text = int(row[2]) * _MIB, text[row.end() :]
        if not {"total", "used", "free"} <= rows.keys() or rows["used"] + rows["free"] > rows["total"]:
            return True
        amounts = [
            _is("nvidia-smi -q", f"device_{name}", f"FB {name}", n_bytes)
            for name, n_bytes in rows.items()
            if name != "reserved"
        ]
        stamp = re.findall(r"[Tt]imestamp\s*[:>]\s*([^<\n]+)", line.before)
        self._moment = LogMoment(time_ns(stamp[-1])) if stamp else self._moment
        self._into.at(0, device).add(amounts, self._moment)
        return True


def _is_units(text: str) -> bool:
    return PATTERNS["unit_words"].fullmatch(text) is not None


def _head_of(text: str) -> _Head | None:
    """Return the columns where *text* is the head of a table about memory."""
    words = re.sub(r"[#,]", " ", text.lower().replace("entity", "gpu")).split()
    has_memory = any(_COLUMNS.get(word) for word in words)
    if not has_memory or "gpu" not in words or any(word.isdigit() for word in words):
        return None
    origin = next(name for word, name in _ORIGINS.items() if word in words)
    return _Head(origin, {word: at for at, word in enumerate(words)}, len(words))
