"""A cache of converted files, so that a large file of another tool is read only once.

Each source has one file below ``$XDG_CACHE_HOME/vramscope`` (``~/.cache/vramscope``): nothing is written next
to the users' files. ``VRAMSCOPE_CACHE`` names another directory, or is ``off``. A conversion is valid only
for the exact file it was made from (path, size, times, inode) and the exact code that made it. A conversion
that cannot be read, written or trusted is ignored.
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vramscope.conversion_cache import column_file
from vramscope.model.recording import Run

_SUFFIX, _OF_SUMMARIES = ".mapped", ".summary"

_PACKAGE = Path(__file__).parents[1]
_PARTS = ("allocator", "formats", "model", "store")
"""The packages whose code decides the result of a conversion."""

Identity = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of what is cached."""

    fewest_events: int = 100_000
    """The least number of events that is cached; fewer are read again in a tenth of a second."""
    largest_bytes: int = 4 << 30
    """The size limit of the directory; the least recently used conversions are deleted first."""
    settled_ns: int = 2 * 10**9
    """A file that changed more recently may change again without a new modification time: the coarsest
    clock of a file system, that of FAT, counts two seconds.
    """


LIMITS = Limits()


def identity(path: Path, *, package: Path = _PACKAGE) -> Identity | None:
    """Return what identifies the file at *path* in its current state; None if that is unknown.

    The code in the directory *package* is what converts it.
    """
    try:
        status = path.stat()
        where = os.path.abspath(path)  # noqa: PTH100 the name counts, not the target of a link
    except OSError:
        return None
    # A fingerprint of the converting code, which also changes while the code is edited.
    code = (path for part in _PARTS for path in sorted((package / part).rglob("*")))
    files = [path for path in code if path.suffix in (".py", ".tsv")]
    states = [
        (str(path.relative_to(package)), status.st_size, status.st_mtime_ns)
        for path in files
        for status in [path.stat()]
    ]
    return {
        "path": where,
        "size": status.st_size,
        "inode": [status.st_dev, status.st_ino],
        "changed_ns": [status.st_mtime_ns, status.st_ctime_ns],
        "code": hashlib.sha256(repr((sys.byteorder, states)).encode()).hexdigest()[:16],
    }


def find(path: Path, source: Identity | None) -> Run | None:
    """Return the cached conversion of *source*, the file at *path*; None if there is no valid one."""
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


def is_wanted(run: Run, source: Identity | None, limits: Limits = LIMITS) -> bool:
    """Return whether to cache *run*, read from *source*: it is large, and the cache is not off."""
    n_events = sum(len(recording.trace) for recording in run.recordings)
    return _place(source) is not None and n_events >= limits.fewest_events


def keep(run: Run, path: Path, source: Identity | None, limits: Limits = LIMITS) -> None:
    """Cache *run*, which was read from *source* at *path*; never raises."""
    place = _place(source)
    if place is None or source is None or source != identity(path) or not is_wanted(run, source, limits):
        return
    if time.time_ns() - max(source["changed_ns"]) < limits.settled_ns:
        return
    with suppress(OSError, TypeError, ValueError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(place, run, source)
        _tidy(place, limits.largest_bytes)


def _write(place: Path, run: Run, source: Identity) -> None:
    """Write the file completely or not at all.

    A reader never finds half a file; after a power failure, the checksums show it.
    """
    with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".part", delete=False) as file:
        try:
            column_file.write(file, run, source)
            file.flush()
            Path(file.name).replace(place)
        except BaseException:
            _remove(Path(file.name))
            raise


def _place(source: Identity | None) -> Path | None:
    """Return the path of the conversion of *source*; None if the cache is off or has no directory."""
    home = cache_directory()
    if source is None or home is None:
        return None
    # There is one conversion per path: that of a changed file replaces the older one.
    return home / f"{_name(source['path'])}{_SUFFIX}"


def cached_summary(rank: Path, state: tuple[int, ...]) -> Path | None:
    """Return where a reader keeps the summary of a rank; None if nothing is cached.

    *state* identifies the recording among all that were ever in that directory.
    """
    home = cache_directory()
    return None if home is None else home / f"{_name(f'{rank.absolute()} {state}')}{_OF_SUMMARIES}"


def _name(path: str) -> str:
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:32]


def cache_directory() -> Path | None:
    """Return the directory of everything that vramscope caches; None if the cache is off or has no place."""
    wanted = os.environ.get("VRAMSCOPE_CACHE", "")
    if wanted.lower() in ("off", "0", "no", "false"):
        return None
    try:
        return Path(wanted) if wanted else _home()
    except RuntimeError:  # no home directory
        return None


def _home() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path is to be ignored.
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "vramscope"


def _tidy(newest: Path, largest_bytes: int) -> None:
    """Keep the directory below its size limit, and delete half-written files of killed processes."""
    found = sorted(_files(newest.parent), reverse=True)
    total = 0
    for used, size, path in found:
        total += size
        is_abandoned = path.suffix == ".part" and time.time_ns() - used > 3600 * 10**9
        if path != newest and (is_abandoned or total > largest_bytes):
            _remove(path)


def _files(directory: Path) -> Iterator[tuple[int, int, Path]]:
    for path in directory.iterdir():
        if path.suffix in (_SUFFIX, _OF_SUMMARIES, ".part"):
            with suppress(OSError):
                status = path.stat()
                yield status.st_mtime_ns, status.st_size, path


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
