"""Figures in tables and objects with names: CSV with a head, JSON, lines of JSON."""

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

from vramscope.formats.log.lines import Shaped
from vramscope.formats.log.patterns import Amount, Wording, amounts, device_in, names_memory
from vramscope.formats.log.places import LogMoment
from vramscope.formats.log.series import Figures
from vramscope.formats.log.times import time_ns
from vramscope.model.counters import UNKNOWN

_MOST_COLUMNS = 5000
_MOST_DEPTH = 12
_STEP_NAMES = ("step", "_step", "global_step", "trainer/global_step", "current_steps", "iteration", "iter")
_TIME_NAMES = ("timestamp", "_timestamp", "time", "wall time", "wall_time", "query_time", "date", "datetime")
_SINCE_NAMES = ("relative time (process)", "relative time (wall)", "_runtime", "elapsed")
_DEVICE_NAMES = ("index", "gpu", "gpu_index", "gpu_id", "device", "card", "device_id", "minor_number")
_UUID_NAMES = ("uuid", "gpu_uuid", "gpu_bus_id", "hostname")
_DEVICE = re.compile(r"(?:card|gpu|cuda:|nvidia)?\s*(\d{1,3})")
_BUSY = re.compile(r"utilization[._ ]?gpu|gpu_utilization", re.IGNORECASE)
_IS_EVENT = "memoryOperationType"
"""A column of the table of allocations of Nsight Systems."""
_VALUE = re.compile(r"[{}=]|[\"']\s*:|:\s+[-\d]")
"""What a cell has that is no name of a column."""


class Records:
    """Takes records, each a mapping of names to values, and finds what in them is memory."""

    def __init__(self, into: Figures) -> None:
        self.into = into
        self._devices: dict[str, int] = {}

    def take(self, record: Mapping[str, Any], path: str = "", outer: LogMoment | None = None) -> bool:
        """Add the amounts of one record; return whether it has any."""
        names = {str(name).strip().lower(): value for name, value in record.items()}
        moment = self.moment(names, outer or LogMoment())
        device = self._device(names, path)
        found: dict[int, list[Amount]] = {}
        for name, value in record.items():
            for amount in self._amounts(f"{path}.{name}" if path else str(name), value):
                found.setdefault(amount.device if amount.device >= 0 else device, []).append(amount)
        for index, group in found.items():
            place = self.into.at(0, index, moment)
            place.name = place.name or str(names.get("name", names.get("gpu_name", "")))[:80]
            place.add(group, moment, busy=self._busy(names))
        return bool(found)

    def _amounts(self, name: str, value: Any) -> list[Amount]:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)) or len(name) > 400:
            return []
        if not names_memory(name):
            return []
        text = f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value).strip()
        if len(text) > 30 or not re.match(r"\d", text):
            return []
        return amounts(Shaped(f"{name}: {text} "))[:1]

    def _device(self, names: Mapping[str, Any], path: str) -> int:
        for name in _DEVICE_NAMES:
            found = _DEVICE.fullmatch(str(names[name]).strip().lower()) if name in names else None
            if found:
                return int(found[1])
        named = next((str(names[name]) for name in _UUID_NAMES if names.get(name)), "")
        if named and "hostname" not in names:
            return self._devices.setdefault(named, len(self._devices))
        return max(device_in(path), 0)

    @staticmethod
    def moment(names: Mapping[str, Any], outer: LogMoment) -> LogMoment:
        """Return the time and the step that a record names, or those of what it is in."""
        step = next((names[name] for name in _STEP_NAMES if _is_number(names.get(name))), UNKNOWN)
        when = next((_time(names[name]) for name in _TIME_NAMES if names.get(name) not in (None, "")), 0)
        since = next((names[name] for name in _SINCE_NAMES if _is_number(names.get(name))), None)
        if not when and since is not None:
            when = round(float(since) * 1e9)
        return LogMoment(when or outer.time_ns, int(float(step)) if _is_number(step) else outer.step)

    @staticmethod
    def _busy(names: Mapping[str, Any]) -> int:
        value = next((value for name, value in names.items() if _BUSY.search(name)), None)
        share = float(value) if value is not None and _is_number(value) else UNKNOWN
        return round(share) if 0 <= share <= 100 else UNKNOWN


def _is_number(value: Any) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return abs(value) < 1 << 62
    return isinstance(value, str) and re.fullmatch(r"-?\d{1,18}(?:\.\d{1,18})?", value.strip()) is not None


def _time(value: Any) -> int:
    """Return Unix nanoseconds of a time in seconds, milliseconds or as text; 0 where it is none."""
    if not _is_number(value):
        return time_ns(str(value)[:60])
    number = float(value)
    scale = next((10**power for power in (9, 6, 3, 0) if 1e8 * 1e9 <= number * 10**power < 1e10 * 1e9), 0)
    return round(number * scale)


def take_json(
    value: Any, records: Records, path: str = "", moment: LogMoment | None = None, depth: int = 0
) -> bool:
    """Add what *value*, of JSON, has of memory; return whether it has anything."""
    if depth > _MOST_DEPTH:
        return False
    if isinstance(value, list):
        # A list without separate places is one of moments or of devices, which name themselves.
        return sum(take_json(each, records, path, moment, depth + 1) for each in value) > 0
    if not isinstance(value, dict):
        return False
    flat = {str(name): each for name, each in value.items() if not isinstance(each, (dict, list))}
    found = int(records.take(flat, path, moment))
    if len(flat) == len(value):
        return found > 0
    own = records.moment({str(name).lower(): each for name, each in flat.items()}, moment or LogMoment())
    for name, each in value.items():
        if isinstance(each, (dict, list)):
            found += take_json(each, records, f"{path}.{name}".strip("."), own, depth + 1)
    return found > 0


def is_csv_head(line: str) -> bool:
    """Return whether *line* is the head of a CSV file with a column about memory."""
    if _VALUE.search(line):
        return False
    cells = _cells(line)
    if not 2 <= len(cells) <= _MOST_COLUMNS or any(map(_is_number, cells)):
        return False
    if not (_IS_EVENT in cells or any(map(names_memory, cells)) or _is_long(cells)):
        return False
    return not any(amounts(Shaped(cell)) for cell in cells)


def _is_long(cells: list[str]) -> bool:
    """Return whether each row has the name of its value, as in exports of MLflow and TensorBoard."""
    names = {cell.lower() for cell in cells}
    return "value" in names and bool(names & {"key", "metric", "tag", "name"})


def _cells(line: str) -> list[str]:
    delimiter = "\t" if line.count("\t") > line.count(",") else ","
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]


class AllocationEvents:
    """Follows what Nsight Systems records of CUDA's allocations, each a mapping of its columns to values."""

    _WORDING = Wording("Nsight Systems (without its CUDA context)", "bytes", "process_used", "B")

    def __init__(self, into: Figures) -> None:
        self._into = into
        self._held: dict[tuple[int, int], dict[int, int]] = {}
        self._total: dict[tuple[int, int], int] = {}

    def take(self, record: Mapping[str, Any]) -> None:
        """Add one event; events come in the order of their times."""
        event = {
            name: int(str(value).partition(".")[0]) for name, value in record.items() if _is_number(value)
        }
        device, n_bytes = event.get("deviceId", 0), event.get("bytes", -1)
        # Device memory, arrays and static memory, in Nsight's own numbers.
        if event.get("memKind", 2) not in (2, 3, 5) or n_bytes < 0 or not 0 <= device < 1024:
            return
        # Nsight's global id has the process in its upper bits.
        place = event.get("globalPid", 0) >> 24 & 0xFFFFFF, device
        blocks, address = self._held.setdefault(place, {}), event.get("address", 0)
        before = blocks.pop(address, 0)
        if not event.get("memoryOperationType"):
            blocks[address] = n_bytes
        self._total[place] = self._total.get(place, 0) + blocks.get(address, 0) - before
        amount = Amount(self._WORDING, self._total[place], device, "memory of CUDA's allocations")
        self._into.at(0, device).process(place[0], "").add([amount], LogMoment(event.get("start", 0)))


class CsvReader:
    """Reads a CSV file, row by row."""

    def __init__(self, head: str, records: Records) -> None:
        self._names = _cells(head)
        self._records: Records | AllocationEvents = records
        self._is_long = _is_long(self._names)
        if _IS_EVENT in self._names:
            self._records = AllocationEvents(records.into)

    def take(self, line: str) -> bool:
        """Add a row; return whether it is one."""
        cells = _cells(line)
        if len(cells) != len(self._names):
            return False
        record: dict[str, Any] = dict(zip(self._names, cells, strict=True))
        if self._is_long:
            small = {name.lower(): value for name, value in record.items()}
            name = next((small[each] for each in ("key", "metric", "tag", "name") if each in small), "")
            record = {name: small["value"]} | {
                each: small[each] for each in ("step", "timestamp", "wall time") if each in small
            }
        self._records.take(record)
        return True


def parsed_line(text: str) -> Any:
    """Return the object that a line of JSON is; None if it is none."""
    start, end = text.find("{"), text.rfind("}")
    if not (0 <= start < end and '"' in text) or start > 200:
        return None
    try:
        return json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
