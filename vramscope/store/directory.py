"""Recognition of run directories by their names alone.

Many directories are checked this way, so no file is read and Arrow is not imported.
"""

import os
import re
from pathlib import Path

MANIFEST = "manifest.json"
PREDICTION = "prediction.json"
"""The file with the answer of a dry run."""
COPY_INDEX = ".remote.json"
"""The file that marks a directory as the copy of one in an object store."""
_RANK = re.compile("rank([0-9]{1,9})(?:-restart([0-9]{1,6}))?")


def is_rank(directory: Path) -> bool:
    """Return whether this directory holds the trace of one rank."""
    return (directory / MANIFEST).is_file()


def is_rank_name(name: str) -> bool:
    """Return whether a directory of this name is that of a rank in a run."""
    return _RANK.fullmatch(name) is not None


def ranks_of(run: Path) -> list[Path]:
    """Return the directories of a run's ranks in order, without those that have no manifest (yet).

    Of a rank that was restarted, this is the directory of its last attempt.
    """
    return [attempts[-1] for _, attempts in sorted(_attempts(run).items())]


def rank_of(run: Path, rank: int) -> Path | None:
    """Return the directory of one rank of a run, its last attempt; None where it has none.

    Of the other ranks only the names are read.
    """
    return next((attempts[-1] for _, attempts in _attempts(run, rank).items()), None)


def attempts_of(run: Path) -> dict[int, int]:
    """Return the number of attempts of each rank: more than one where its process was restarted."""
    return {rank: len(attempts) for rank, attempts in _attempts(run).items()}


def rank_name(rank: int, restarts: int = 0) -> str:
    """Return the name of a rank's directory: ``rank3``, and ``rank3-restart1`` after the first restart."""
    return f"rank{rank}-restart{restarts}" if restarts else f"rank{rank}"


def _attempts(run: Path, only: int | None = None) -> dict[int, list[Path]]:
    found: dict[int, list[tuple[int, Path]]] = {}
    try:
        names = [entry.name for entry in os.scandir(run)]
    except OSError:
        return {}
    for name in names:
        match = _RANK.fullmatch(name)
        if match is not None and only in (None, int(match[1])) and is_rank(run / name):
            found.setdefault(int(match[1]), []).append((int(match[2] or 0), run / name))
    return {rank: [path for _, path in sorted(attempts)] for rank, attempts in found.items()}


def is_run(directory: Path) -> bool:
    """Return whether a run was recorded into this directory."""
    return bool(ranks_of(directory))
