"""The source lines that a recording keeps, so that its code is shown on any machine."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from vramscope.store import sources
from vramscope.store.directory import is_rank, rank_of
from vramscope.store.sources import SOURCES_FILE, SourceFile

from ..data import View

Kept = Mapping[str, SourceFile]


def kept_sources(view: View) -> Kept:
    """Return the kept lines of a recording by path of the file; empty for a file that torch wrote."""
    run = Path(view.run.path) if view.run.path else None
    if run is None or not run.is_dir():
        return {}
    rank = run if is_rank(run) else rank_of(run, view.recording.process.rank)
    path = None if rank is None else rank / SOURCES_FILE
    try:
        return {} if path is None else _read(path, path.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=16)
def _read(path: Path, _: int) -> Kept:
    return sources.read(path)
