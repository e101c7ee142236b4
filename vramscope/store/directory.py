"""Is this directory a run? Asked of many; nothing is read, and Arrow not loaded."""

import re
from pathlib import Path

MANIFEST = "manifest.json"


def is_rank(directory: Path) -> bool:
    """Whether one rank's trace is in this directory."""
    return (directory / MANIFEST).is_file()


def ranks_of(run: Path) -> list[Path]:
    """The directories of a run's ranks, in order; those without a manifest (yet) are left out."""
    try:
        found = [
            path for path in run.iterdir() if re.fullmatch("rank[0-9]{1,9}", path.name) and is_rank(path)
        ]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name[4:]))


def is_run(directory: Path) -> bool:
    """Whether a run was recorded into this directory."""
    return bool(ranks_of(directory))
