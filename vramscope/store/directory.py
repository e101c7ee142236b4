"""Recognition of run directories by their names alone.

Many directories are checked this way, so no file is read and Arrow is not imported.
"""

import re
from pathlib import Path

MANIFEST = "manifest.json"


def is_rank(directory: Path) -> bool:
    """Return whether this directory holds the trace of one rank."""
    return (directory / MANIFEST).is_file()


def ranks_of(run: Path) -> list[Path]:
    """Return the directories of a run's ranks in order, without those that have no manifest (yet)."""
    try:
        found = [
            path for path in run.iterdir() if re.fullmatch("rank[0-9]{1,9}", path.name) and is_rank(path)
        ]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name[4:]))


def is_run(directory: Path) -> bool:
    """Return whether a run was recorded into this directory."""
    return bool(ranks_of(directory))
