"""Opens recordings: run directories, and files that torch or other tools wrote."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramscope import conversion_cache, formats, registry
from vramscope.allocator.levels import levels as levels_of
from vramscope.allocator.replay.contradictions import Levels, contradictions
from vramscope.allocator.state_index import checkpoints
from vramscope.errors import FormatError, StoreError, UnknownNameError, UsageError
from vramscope.formats import Format, Watch
from vramscope.malloc import malloc_trim
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.remote import local_path
from vramscope.store.directory import is_rank, is_run
from vramscope.units import format_bytes

if TYPE_CHECKING:
    from vramscope.columns.scratch import Scratch
    from vramscope.remote.copies import RemoteTree
    from vramscope.store.read.reader import Reader

HEAD_BYTES = 64 << 10
"""The first bytes of a file, by which a format decides whether it can read the file."""

_MOST_FILES = 1000
"""The most files below a directory that are opened, newest first: a home directory must not take minutes."""

_REFUSES = "unsupported"
"""The format that recognizes files which cannot be read, and explains why."""

_CHANGED = Note(NoteCode.CHANGED, "the file changed while it was read: open it again")

_LIST_EVERY_S = 5.0
"""The least time between two listings of a store for a run that may grow there."""

_DOCUMENTATION = frozenset({".md", ".rst"})
"""Names of texts that quote messages; such a file opens where it is given by its name."""

_NEVER_INSIDE = frozenset({"node_modules", "site-packages", "__pycache__"})


class Follower:
    """A run that may still grow; a file of another tool never does."""

    def __init__(self, path: Path, watch: Watch | None = None, scratch: "Scratch | None" = None) -> None:
        """Open the run at *path*. Raises the errors of ``load``."""
        self._path = path
        self._source: Reader | Run = _reader(path, scratch) if _is_ours(path) else self._load_file(watch)
        self._checked: tuple[Run, Run] | None = None
        """A run as it was read, and the same run with notes on its contradictions."""

    def _load_file(self, watch: Watch | None) -> Run:
        """Return the cached conversion of a file, or read the file."""
        source = conversion_cache.identity(self._path)
        run = conversion_cache.find(self._path, source)
        if run is not None:
            return run
        run, levels = _with_contradictions(_read_file(self._path, watch))
        if source != conversion_cache.identity(self._path):
            run = replace(run, notes=(*run.notes, _CHANGED))
        if not conversion_cache.is_wanted(run, source):
            return run
        trim = malloc_trim()
        if trim is not None:
            trim(0)  # decoding a million events leaves 80 MB free in the heaps of its threads
        return self._converted(run, source, levels)

    def _converted(
        self, run: Run, source: "conversion_cache.Identity | None", _: tuple[Recording, Levels] | None
    ) -> Run:
        return _kept(run, self._path, source)

    def refresh(self) -> bool:
        """Read what was written since the last call.

        Returns
        -------
        bool
            Whether anything is new.
        """
        return not isinstance(self._source, Run) and self._source.refresh()

    @property
    def run(self) -> Run:
        """The run as far as it was read; the same object until a refresh finds more."""
        if isinstance(self._source, Run):
            return self._source
        run = self._source.run
        # The check is one pass over all events, so a growing run is checked only when it has ended.
        if run.outcome is Outcome.RUNNING:
            return run
        if self._checked is None or self._checked[0] is not run:
            self._checked = run, _with_contradictions(run)[0]
        return self._checked[1]


class HurriedFollower(Follower):
    """A run whose first answers do not wait for what no answer needs.

    Parameters
    ----------
    path
        A run's directory, or a file.
    watch
        Is called again and again while a file is read for the first time; reading goes on when it returns.
    scratch
        Where the columns of a run are kept while it grows; in memory where None.
    """

    def __init__(self, path: Path, watch: Watch | None = None, scratch: "Scratch | None" = None) -> None:
        self._unkept: conversion_cache.Identity | None = None
        self.levels: tuple[Recording, Levels] | None = None
        """The recording with the most events and its levels, where a file was checked for contradictions."""
        super().__init__(path, watch, scratch)

    def _converted(
        self, run: Run, source: "conversion_cache.Identity | None", levels: tuple[Recording, Levels] | None
    ) -> Run:
        self._unkept, self.levels = source, levels
        return run

    def settle(self) -> None:
        """Cache the conversion of a file, in 0.2 s per million events; what ``run`` holds stays the same."""
        if self._unkept is not None and isinstance(self._source, Run):
            source, self._unkept = self._unkept, None
            self._source = _kept(self._source, self._path, source)


class _RemoteFollower(Follower):
    """A run in an object store that may still grow there; its copy is read."""

    def __init__(self, tree: "RemoteTree", below: str) -> None:
        """Copy the run in the directory *below* of *tree*, and open it. Raises the errors of ``load``."""
        self._tree, self._below = tree, below
        self._url = f"{tree.url}/{below}".rstrip("/")
        self._shown: tuple[Run, Run] | None = None
        """The run of the copy, and the same run with the URL as its path."""
        tree.copy_all(below)
        self._copied_s = time.monotonic()
        self._copy = Follower(tree.path / below)

    def refresh(self) -> bool:
        """Copy and read what was uploaded since the last call; looks at the store every five seconds.

        Returns
        -------
        bool
            Whether anything is new.
        """
        if self._copy.run.outcome is Outcome.RUNNING and time.monotonic() - self._copied_s > _LIST_EVERY_S:
            # A store that is away for a while must not end the view of what was copied.
            with suppress(StoreError):
                self._tree.copy_all(self._below)
            self._copied_s = time.monotonic()
        return self._copy.refresh()

    @property
    def run(self) -> Run:
        """The run as far as it was copied; the same object until a refresh finds more."""
        run = self._copy.run
        if self._shown is None or self._shown[0] is not run:
            self._shown = run, replace(run, path=self._url)
        return self._shown[1]


def load(path: str | Path) -> Run:
    """Load the run at *path*.

    Parameters
    ----------
    path
        A run's directory, the directory of one rank, a directory that contains exactly one run, or a file of
        another tool, such as a snapshot that ``torch.cuda.memory._dump_snapshot`` wrote. What is at a URL of
        fsspec, such as ``s3://bucket/run``, is copied into the cache directory first.

    Returns
    -------
    Run
        One recording per rank and device, and notes on everything that is missing or damaged.

    Raises
    ------
    UnknownNameError
        If there is nothing at *path*.
    UsageError
        If the directory contains several runs.
    StoreError
        If a run's directory cannot be read.
    FormatError
        If a file of another tool cannot be read; the message says what to do.
    """
    return follow(path).run


def follow(path: str | Path) -> Follower:
    """Load a run that may still be written.

    Parameters
    ----------
    path
        The same paths as for ``load``.

    Returns
    -------
    Follower
        Its ``run`` is the run so far; its ``refresh()`` reads what was written since.

    Raises
    ------
    VramscopeError
        The same errors as ``load``.
    """
    place = local_path(path)
    return _follow_remote(str(path)) if place is None else Follower(_only_one(place))


def _follow_remote(url: str) -> Follower:
    from vramscope.remote.copies import RemoteTree, runs_in

    tree = RemoteTree(url)
    listed = tree.listing()
    found = runs_in(listed) or ([""] if "" in listed else [])
    if not found and len(listed) == 1:
        found = list(listed)
    if not found:
        raise StoreError(f"{url}: no run in it; record one with vramscope.record({url + '/run'!r})")
    if len(found) > 1:
        raise _several(url, [f"{tree.url}/{each}" for each in found])
    return _RemoteFollower(tree, found[0])


def discover(root: str | Path, *, most_files: int = _MOST_FILES) -> list[Path]:
    """Find run directories and files of known formats at or below *root*, newest first.

    Links are not followed, so nothing outside of *root* is found. Hidden directories and installed packages
    are left out. If there are more than *most_files* files, only the newest are opened.
    """
    root = Path(root)
    if _is_ours(root):
        return [root]
    runs, files = _walk(root) if root.is_dir() else ([], [root])
    candidates = sorted(files, key=_modified, reverse=True)[:most_files]
    offered = {name: known for name, known in _formats().items() if name != _REFUSES}
    runs += [path for path in candidates if _is_known(path, offered)]
    return sorted(runs, key=_modified, reverse=True)


def _only_one(path: Path) -> Path:
    """Return *path* itself or the only run below it."""
    if path.is_symlink() and not path.exists():
        raise UnknownNameError(f"{path}: a link that leads nowhere")
    if not path.exists():
        raise UnknownNameError(f"{path}: there is nothing; give a run's directory or a snapshot file")
    if not path.is_dir() or _is_ours(path):
        return path
    found = discover(path)
    if not found:
        raise StoreError(f"{path}: no run in it; record one with vramscope.record({str(path / 'run')!r})")
    if len(found) > 1:
        raise _several(path, found)
    return found[0]


def _several(path: str | Path, found: Sequence[str | Path]) -> UsageError:
    shown = ", ".join(str(each) for each in found[:10]) + (", …" if len(found) > 10 else "")
    return UsageError(f"{path}: {len(found)} runs in it; say which: {shown}")


def _is_ours(path: Path) -> bool:
    return path.is_dir() and (is_rank(path) or is_run(path))


def _reader(path: Path, scratch: "Scratch | None") -> "Reader":
    # Imported late: a file of another tool opens without importing Arrow.
    from vramscope.store.read.reader import Reader

    return Reader(path, scratch)


def _with_contradictions(run: Run) -> tuple[Run, tuple[Recording, Levels] | None]:
    """Return *run* with a note on every total that cannot be true, and its longest recording's levels."""
    longest = max(run.recordings, key=lambda each: len(each.trace), default=None)
    checked: list[Recording] = []
    found: tuple[Recording, Levels] | None = None
    for recording in run.recordings:
        levels = levels_of(recording.trace, recording.initial) if len(recording.trace) else ()
        notes = contradictions(recording, levels)
        checked.append(replace(recording, notes=(*recording.notes, *notes)) if notes else recording)
        if recording is longest and levels:
            found = checked[-1], levels
    if all(one is other for one, other in zip(run.recordings, checked, strict=True)):
        return run, found
    return replace(run, recordings=tuple(checked)), found


def _kept(run: Run, path: Path, source: conversion_cache.Identity | None) -> Run:
    """Return *run* with checkpoints, after caching it."""
    run = replace(run, recordings=tuple(replace(one, checkpoints=checkpoints(one)) for one in run.recordings))
    conversion_cache.keep(run, path, source)
    return run


def format_of_file(path: Path) -> Format:
    """Return the format of a file of another tool; FormatError says why there is none."""
    try:
        found = _format_of(path, registry.own_parts(formats, Format)) or _format_of(path, _formats())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    if found is None:
        raise FormatError(f"{path}{_why_unknown(path)}")
    return found


def _read_file(path: Path, watch: Watch | None) -> Run:
    found = format_of_file(path)
    if watch is not None and found.read_watched is not None:
        return found.read_watched(path, watch)
    return found.read(path)


def _why_unknown(path: Path) -> str:
    if not path.is_file():
        return ": a pipe or a device; save what comes out of it to a file, and open that"
    if is_rank(path.parent):
        return f": a part of a run; open the run: {path.parent.parent}"
    size = path.stat().st_size
    if not size:
        return ": an empty file; whoever wrote it did not finish, or had no room left"
    from vramscope.formats.unsupported import why_not

    return f" ({format_bytes(size)}): of no format that vramscope reads; {why_not(path)}"


def _formats() -> dict[str, Format]:
    # A broken format of a plugin must not prevent the others from reading.
    return registry.parts(formats, Format, refused=lambda _name, _error: None)


def _format_of(path: Path, offered: Mapping[str, Format]) -> Format | None:
    """Return the format that recognizes this file; None also for pipes and devices. Raises OSError."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    ordered = sorted(offered.values(), key=lambda known: known.is_asked_last)
    return next((known for known in ordered if known.sniff(head, path)), None)


def _is_known(path: Path, offered: Mapping[str, Format]) -> bool:
    with suppress(OSError):
        return _format_of(path, offered) is not None
    return False


def _walk(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the runs and the other files below *root*, without the files that belong to a run."""
    runs: list[Path] = []
    files: list[Path] = []
    for directory, below, names in os.walk(root):
        here = Path(directory)
        if is_run(here) or is_rank(here):
            runs.append(here)
            below.clear()
            continue
        below[:] = [name for name in below if not name.startswith(".") and name not in _NEVER_INSIDE]
        paths = [here / name for name in names if not name.startswith(".")]
        files += [
            path for path in paths if path.suffix.lower() not in _DOCUMENTATION and not path.is_symlink()
        ]
    return runs, files


def _modified(path: Path) -> float:
    """Return when a file, or any file of a run, last changed; 0 if it no longer exists."""
    if path.is_dir():
        return max(map(_modified, path.glob("*" if is_rank(path) else "rank*/*")), default=0.0)
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
