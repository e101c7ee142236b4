"""Copies of remote runs in the user's cache directory: only what is needed, and only what has changed.

A copy is at ``<cache>/remote/<protocol>/<path>``. In each directory, ``.remote.json`` has the size and the
tag (the store's ETag, else its time of change) of the object that each file was copied from.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vramscope.conversion_cache import cache_directory
from vramscope.errors import StoreError, UnknownNameError
from vramscope.remote import opened, store_errors
from vramscope.store.directory import COPY_INDEX, MANIFEST, is_rank_name
from vramscope.store.read import side_file
from vramscope.store.summaries import SUMMARY_FILE
from vramscope.store.write.own_file import replace_file

LARGEST_BYTES = 32 << 30
"""The size limit of all copies together; those that were not used for the longest time are deleted first."""
_SMALL = 1 << 20
"""Objects up to this size are read many at once; larger ones are streamed to the disk."""
_LARGEST_INDEX_BYTES = 64 << 20
_AT_ONCE = 256
_MOST_ROUNDS = 4
"""How often a copy is repeated because the run was written to meanwhile."""
_RECENT_S = 3600.0

_without_cache: list[tempfile.TemporaryDirectory[str]] = []
"""The directory for copies of this process where the cache is off."""


class Remote(NamedTuple):
    """One object of a store, as a listing describes it."""

    n_bytes: int
    tag: str
    changed_s: float
    """Unix time of the last change; 0 if the store does not tell."""


class RemoteTree:
    """Everything at or below one URL, with its copy on this machine."""

    def __init__(self, url: str) -> None:
        """Refer to *url*; nothing is opened yet."""
        self.url = url.rstrip("/")
        self._files, self._root = opened(self.url)
        protocol, _, path = self.url.partition("://")
        self.path = _copies() / protocol.replace("::", "-") / _safe(path)
        """Where the copy lies; it may not exist yet."""

    def listing(self) -> dict[str, Remote]:
        """Return all objects by their path below the URL; that of the URL itself is ``""``.

        Raises UnknownNameError if there is nothing at the URL, StoreError if the store is not reached, or
        refuses.
        """
        with store_errors(self.url):
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
            listed = {name: _remote(about) for name, about in self._entries(found)}
        if not listed:
            raise UnknownNameError(f"{self.url}: there is nothing; give the URL of a run or a snapshot file")
        return listed

    def _entries(self, found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, about in found.items():
            below = name[len(self._root) :].lstrip("/")
            # Keys of a store are any text: none may lead out of the copy.
            parts = below.split("/")
            if about.get("type") == "file" and (not below or not {"", ".", "..", COPY_INDEX} & set(parts)):
                yield below, about

    def copy(self, listed: Mapping[str, Remote], names: Iterable[str]) -> None:
        """Copy the objects of these names as far as the copy does not have them; raises StoreError."""
        stale: list[str] = []
        for home, below in _by_directory(names).items():
            index = _index(self._local(home))
            stale += [
                name
                for name in below
                if index.get(_base(name, self.path)) != _known(listed[name]) or not self._local(name).exists()
            ]
        with store_errors(self.url):
            self._fetch(listed, [name for name in stale if listed[name].n_bytes <= _SMALL], self._read_many)
            self._fetch(listed, [name for name in stale if listed[name].n_bytes > _SMALL], self._stream)
        if stale:
            _tidy(_copies(), self.path)

    def copy_all(self, below: str = "") -> None:
        """Copy everything, or all in the directory *below*, until nothing has changed meanwhile.

        A manifest names files that were uploaded before it. So files that were listed before the manifest was
        read may be too old for it, and another listing shows that.
        """
        before: Mapping[str, Remote] | None = None
        inside = f"{below}/" if below else ""
        for _ in range(_MOST_ROUNDS):
            listed = {name: each for name, each in self.listing().items() if name.startswith(inside)}
            if listed == before:
                break
            self.copy(listed, listed)
            self.remove_others(listed, below)
            before = listed

    def _fetch(self, listed: Mapping[str, Remote], names: list[str], fetch: Any) -> None:
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            for directory in {self._local(name).parent for name in some}:
                _make(directory, self.url)
            there = fetch(some)
            for home, below in _by_directory(there).items():
                known = {_base(name, self.path): _known(listed[name]) for name in below}
                _write_index(self._local(home), _index(self._local(home)) | known)
            for name in there:
                if listed[name].changed_s:
                    os.utime(self._local(name), (listed[name].changed_s,) * 2)

    def _read_many(self, names: list[str]) -> list[str]:
        found = self._files.cat([self._key(name) for name in names], on_error="return")
        there = []
        for name in names:
            data = found[self._key(name)] if isinstance(found, dict) else found
            if isinstance(data, FileNotFoundError):  # deleted since it was listed
                continue
            if isinstance(data, BaseException):
                raise data
            temporary = _temporary(self._local(name))
            temporary.write_bytes(data)
            temporary.replace(self._local(name))
            there.append(name)
        return there

    def _stream(self, names: list[str]) -> list[str]:
        temporary = [_temporary(self._local(name)) for name in names]
        try:
            if names:
                self._files.get([self._key(name) for name in names], list(map(str, temporary)))
            for name, path in zip(names, temporary, strict=True):
                path.replace(self._local(name))
        finally:
            for path in temporary:
                path.unlink(missing_ok=True)
        return names

    def remove_others(self, listed: Mapping[str, Remote], below: str = "") -> None:
        """Remove what was copied and is gone in the store; what was made here, such as a summary, stays."""
        homes = {
            self._local(home): {_base(name, self.path) for name in names}
            for home, names in _by_directory(listed).items()
        }
        for walked, _, there in list(os.walk(self.path / below)):
            directory = Path(walked)
            if COPY_INDEX not in there:
                continue
            if directory not in homes:
                shutil.rmtree(directory, ignore_errors=True)
                continue
            index = _index(directory)
            gone = index.keys() - homes[directory]
            for name in gone:
                (directory / name).unlink(missing_ok=True)
            if gone:
                _write_index(directory, {name: index[name] for name in index.keys() - gone})

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _local(self, name: str | None) -> Path:
        """Return where an object, or with None the object of the URL itself, lies in the copy."""
        return self.path.parent if name is None else self.path / name if name else self.path


@dataclass(frozen=True, slots=True)
class RemoteRank:
    """The directory of one rank in a store."""

    url: str
    copy: Path
    """Where its manifest and its summary are copied to."""
    events_bytes: int
    """The size of its files of events in the store."""

    @property
    def name(self) -> str:
        """The name of its directory, such as ``rank3``."""
        return self.copy.name

    def whole(self) -> Path:
        """Copy the whole rank; return the directory of the copy."""
        tree = RemoteTree(self.url)
        tree.copy_all()
        return tree.path


def copied_summaries(url: str) -> tuple[Path, dict[Path, RemoteRank]]:
    """Copy manifests and summaries of a run, and nothing else.

    *url* is a run or one of its ranks. Returns the directory of the copy, and the ranks by the directories of
    their copies. Raises UnknownNameError if there is nothing at *url*, StoreError if the store is not
    reached, or refuses.
    """
    tree = RemoteTree(url)
    listed = tree.listing()
    homes = [""] if MANIFEST in listed else sorted({name.partition("/")[0] for name in listed if "/" in name})
    ranks: dict[Path, RemoteRank] = {}
    wanted: list[str] = []
    events = dict.fromkeys(homes, 0)
    for name, about in listed.items():
        home = name.partition("/")[0] if homes != [""] else ""
        if home in events and PurePosixPath(name).name.startswith("events-"):
            events[home] += about.n_bytes
    for home in homes:
        if home and not is_rank_name(home):
            continue
        inside = f"{home}/" if home else ""
        wanted += [f"{inside}{name}" for name in (MANIFEST, SUMMARY_FILE) if f"{inside}{name}" in listed]
        place = tree.path / home if home else tree.path
        ranks[place] = RemoteRank(f"{tree.url}/{home}".rstrip("/"), place, events[home])
    tree.copy(listed, wanted)
    tree.remove_others(listed)
    return tree.path, ranks


def runs_in(listed: Collection[str]) -> list[str]:
    """Return the directories of runs in a listing, each below the URL; ``""`` is the URL itself."""
    manifests = (PurePosixPath(name) for name in listed if PurePosixPath(name).name == MANIFEST)
    found = {
        str(path.parent.parent) if is_rank_name(path.parent.name) else str(path.parent) for path in manifests
    }
    return sorted("" if name == "." else name for name in found)


def _copies() -> Path:
    home = cache_directory()
    if home is not None:
        return home / "remote"
    if not _without_cache:
        _without_cache.append(tempfile.TemporaryDirectory(prefix="vramscope-"))
    return Path(_without_cache[0].name)


def _safe(path: str) -> str:
    parts = (part for part in path.split("/") if part)
    return "/".join("%2E" * len(part) if part in (".", "..") else part.replace("\0", "%00") for part in parts)


def _remote(about: Mapping[str, Any]) -> Remote:
    times = (about.get(name) for name in ("LastModified", "mtime", "updated", "last_modified", "created"))
    changed = next((each for each in times if each is not None), 0)
    tags = (about.get(name) for name in ("ETag", "etag", "md5Hash", "checksum"))
    tag = next((each for each in tags if each), changed)
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
    changed_s = float(seconds) if isinstance(seconds, int | float) else 0.0
    return Remote(int(about.get("size") or 0), str(tag), changed_s)


def _known(remote: Remote) -> list[Any]:
    return [remote.n_bytes, remote.tag]


def _by_directory(names: Iterable[str]) -> dict[str | None, list[str]]:
    """Return the names by their directories; the object of the URL itself is beside the copy's directory."""
    found: dict[str | None, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition("/")[0] if name else None, []).append(name)
    return found


def _base(name: str, root: Path) -> str:
    return name.rpartition("/")[2] if name else root.name


def _index(directory: Path) -> dict[str, Any]:
    try:
        return side_file.document(directory / COPY_INDEX, _LARGEST_INDEX_BYTES)
    except side_file.DAMAGE:
        return {}


def _write_index(directory: Path, known: Mapping[str, Any]) -> None:
    replace_file(directory / COPY_INDEX, json.dumps(known).encode())


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _make(home: Path, url: str) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"{url}: the copy in {home} cannot be written ({error.strerror})") from error


def _tidy(copies: Path, used: Path) -> None:
    """Keep all copies below the size limit: directories that were not written for longest go first."""
    found: list[tuple[float, int, Path]] = []
    for directory, _, names in os.walk(copies):
        home = Path(directory)
        if COPY_INDEX in names and not home.is_relative_to(used) and not used.is_relative_to(home):
            with suppress(OSError):
                n_bytes = sum((home / name).stat().st_size for name in names)
                found.append(((home / COPY_INDEX).stat().st_mtime, n_bytes, home))
    total = sum(n_bytes for _, n_bytes, _ in found)
    for written_s, n_bytes, home in sorted(found):
        # Another process may be reading a copy that it made a moment ago.
        if total <= LARGEST_BYTES or time.time() - written_s < _RECENT_S:
            break
        shutil.rmtree(home, ignore_errors=True)
        total -= n_bytes
