"""Was this foreign file converted before? The cache of conversions, so that a large file is read once.

One file per source below ``$XDG_CACHE_HOME/vramscope`` (``~/.cache/vramscope``): nothing is put beside other
people's files. ``VRAMSCOPE_CACHE`` names another directory, or ``off``. A conversion counts only for the very
file it was made from (path, size, times, inode) and the very code that made it. What cannot be read, written
or trusted is as if it were not there.
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramscope.conversion_cache import column_file
from vramscope.model.recording import Run

FEWEST_EVENTS = 100_000
"""Fewer are read again in a tenth of a second."""

LARGEST_BYTES = 4 << 30
"""Of the whole directory: the conversions that were not used for longest go first."""

_SUFFIX = ".mapped"
_SETTLED_NS = 2 * 10**9
"""A file changed less than this ago may change again without its time showing it."""

_PARTS = ("allocator", "formats", "model", "store")
"""Of this package: what decides how a conversion comes out."""

Identity = Mapping[str, Any]


def identity(path: Path) -> Identity | None:
    """What tells the file at *path*, as it is now, from any other; None where it cannot be told."""
    try:
        status = path.stat()
        where = os.path.abspath(path)  # noqa: PTH100 the name counts, not what a link points to
    except OSError:
        return None
    return {
        "path": where,
        "size": status.st_size,
        "inode": [status.st_dev, status.st_ino],
        "changed_ns": [status.st_mtime_ns, status.st_ctime_ns],
        "code": _code(),
    }


def find(path: Path, source: Identity | None) -> Run | None:
    """The conversion of *source*, which is at *path*; None where there is none that can be trusted."""
    place = _place(source)
    if place is None:
        return None
    try:
        run, about = column_file.read(place)
    except OSError:
        return None
    except column_file.DamagedError:
        _remove(place)
        return None
    if about != source:
        return None
    with suppress(OSError):
        os.utime(place)
    return replace(run, path=str(path))


def is_wanted(run: Run, source: Identity | None) -> bool:
    """Whether to keep *run*, which was read from *source*: it is large, and the cache is not switched off."""
    n_events = sum(len(recording.trace) for recording in run.recordings)
    return _place(source) is not None and n_events >= FEWEST_EVENTS


def keep(run: Run, path: Path, source: Identity | None) -> None:
    """Keep *run*, which was read from *source* at *path*, for the next time; never raises."""
    place = _place(source)
    if place is None or source is None or source != identity(path) or not is_wanted(run, source):
        return
    if time.time_ns() - max(source["changed_ns"]) < _SETTLED_NS:
        return
    with suppress(OSError, TypeError, ValueError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(place, run, source)
        _tidy(place)


def _write(place: Path, run: Run, source: Identity) -> None:
    """All of it or nothing: a reader never meets half a file. (After a power cut its sums tell.)"""
    with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".part", delete=False) as file:
        try:
            column_file.write(file, run, source)
            file.flush()
            Path(file.name).replace(place)
        except BaseException:
            _remove(Path(file.name))
            raise


def _place(source: Identity | None) -> Path | None:
    """Where the conversion of *source* is or would be; None where none is wanted."""
    wanted = os.environ.get("VRAMSCOPE_CACHE", "")
    if source is None or wanted.lower() in ("off", "0", "no", "false"):
        return None
    try:
        home = Path(wanted) if wanted else _home()
    except RuntimeError:  # no home directory
        return None
    # Of one path there is one conversion: a changed file replaces its older self.
    return home / (hashlib.sha256(source["path"].encode(errors="surrogateescape")).hexdigest()[:32] + _SUFFIX)


def _home() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path is to be ignored.
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "vramscope"


def _tidy(newest: Path) -> None:
    """Keep the directory within its bound, and remove what a killed process left half-written."""
    found = sorted(_files(newest.parent), reverse=True)
    total = 0
    for used, size, path in found:
        total += size
        is_abandoned = path.suffix == ".part" and time.time_ns() - used > 3600 * 10**9
        if path != newest and (is_abandoned or total > LARGEST_BYTES):
            _remove(path)


def _files(directory: Path) -> Iterator[tuple[int, int, Path]]:
    """When each file was last used, its bytes, and its path."""
    for path in directory.iterdir():
        if path.suffix in (_SUFFIX, ".part"):
            with suppress(OSError):
                status = path.stat()
                yield status.st_mtime_ns, status.st_size, path


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _code() -> str:
    """Tells one version of the code that converts from another, also while it is being written."""
    package = Path(__file__).parents[1]
    files = [path for part in _PARTS for path in sorted((package / part).glob("*.py"))]
    states = [(path.name, status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]]
    return hashlib.sha256(repr((sys.byteorder, states)).encode()).hexdigest()[:16]
