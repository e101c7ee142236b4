"""The moment that a line names: its time and its step."""

from datetime import datetime, timezone
from functools import lru_cache

from vramscope.formats.log.lines import PATTERNS, Shaped, places
from vramscope.formats.log.places import LogMoment
from vramscope.model.codes import NoteCode
from vramscope.model.counters import UNKNOWN
from vramscope.model.marks import Note

LOCAL_TIME = Note(NoteCode.LOCAL_TIME, "times have no zone in this file: they are shown as if they were UTC")
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_NS = 1 << 62
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def moment(line: Shaped) -> LogMoment:
    """Return the time, the epoch and the step that a line names."""
    time, epoch, step = _places_in(line.shape)
    return LogMoment(
        time_ns(line.text[line.at(time) :][:60]) if time >= 0 else 0,
        int(line.number(step).replace(",", "")) if step >= 0 else UNKNOWN,
        float(line.number(epoch).partition(",")[0]) if epoch >= 0 else UNKNOWN,
    )


@lru_cache(maxsize=4096)
def _places_in(shape: str) -> tuple[int, int, int]:
    """Return where a line of that shape has its time, and the places of its epoch and step; −1 if none."""
    numbers = places(shape)
    time = (PATTERNS["stamp"].search(shape) or PATTERNS["c_date"].search(shape)) if ":" in shape else None
    epoch, step = (
        numbers.get(found.start(1), UNKNOWN) if (found := words.search(shape)) else UNKNOWN
        for words in (PATTERNS["epoch"], PATTERNS["step"])
    )
    return time.start() if time else UNKNOWN, epoch, step


def time_ns(text: str) -> int:
    """Return the first time in *text* as Unix nanoseconds; 0 if it has none. Without a zone it is UTC.

    Of ``03-11-2026`` the day comes first unless it cannot.
    """
    found = PATTERNS["stamp"].search(text) if ":" in text else None
    if found is None:
        return _of_c_date(text) if ":" in text else 0
    if found["packed"]:
        date = int(found["packed"][:4]), int(found["packed"][4:6]), int(found["packed"][6:])
    elif found["year"]:
        date = int(found["year"]), int(found["month"]), int(found["day"])
    else:
        first, second = int(found["first"]), int(found["second"])
        date = int(found["late"]), *((second, first) if second <= 12 else (first, second))
    hour = _hour(found["clock"], found["half"])
    fraction = int((found["part"] or "0")[:9].ljust(9, "0"))
    return _unix_ns(date, hour, fraction, found["zone"] or "")


def _hour(clock: str, half: str | None) -> tuple[int, int, int]:
    hour, minute, second = map(int, clock.split(":"))
    if half:
        hour = hour % 12 + (12 if half == "PM" else 0)
    return hour, minute, second


def _of_c_date(text: str) -> int:
    found = PATTERNS["c_date"].search(text)
    if found is None:
        return 0
    clock, year = (found[3], found[4]) if found[3] else (found[6], found[5])
    date = int(year), _MONTHS.index(found[1]) // 3 + 1, int(found[2])
    return _unix_ns(date, _hour(clock, None), 0, "")


def _unix_ns(date: tuple[int, int, int], hour: tuple[int, int, int], fraction: int, zone: str) -> int:
    try:
        since = datetime(*date, *hour, tzinfo=timezone.utc) - _UNIX_EPOCH
    except ValueError:
        return 0
    shift = 0
    if zone not in ("", "Z"):
        shift = (int(zone[1:3]) * 60 + int(zone[-2:])) * (60 if zone[0] == "+" else -60)
    n_ns = (since.days * 86_400 + since.seconds - shift) * 1_000_000_000 + fraction
    return n_ns if 0 <= n_ns < _LAST_NS else 0
