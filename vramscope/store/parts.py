"""The directories of a trace in several parts: one grows, complete ones may be deleted, oldest first.

The first part is the rank's own directory. A trace that never reached its cap has no other part; it is the
only form that readers before schema 2 know.
"""

import re
from pathlib import Path

from vramscope.store.manifest import Cap
from vramscope.store.schema import IN_SUMMARIES, device_of


def part(rank: Path, number: int) -> Path:
    """Return the directory of a part; part 0 is the rank's own directory."""
    return rank / f"part{number}" if number else rank


def past(rank: Path, generation: int) -> Path:
    """Return the directory of the summary of deleted parts; each generation has a new one."""
    return rank / f"past{generation}"


def homes(rank: Path, cap: Cap | None) -> list[Path]:
    """Return the directories that hold the streams of a rank, in order."""
    if cap is None:
        return [rank]
    begin = [past(rank, cap.generation)] if cap.generation else []
    there = _numbers(rank)
    numbers = [cap.first_part]
    while numbers[-1] + 1 in there:
        numbers.append(numbers[-1] + 1)
    return [*begin, *(part(rank, number) for number in numbers)]


def unreachable(rank: Path, cap: Cap | None) -> int:
    """Return the number of parts after a missing one: their rows have no known position."""
    first, n_reached = (
        (0, 1) if cap is None else (cap.first_part, len(homes(rank, cap)) - bool(cap.generation))
    )
    beyond = (part(rank, number) for number in _numbers(rank) if number >= first + n_reached)
    # A process may have been killed between making the directory of its next part and writing into it.
    return sum(any(is_in_part(path.name) for path in home.iterdir()) for home in beyond if home.is_dir())


def _numbers(rank: Path) -> set[int]:
    found = (re.fullmatch("part([1-9][0-9]{0,8})", path.name) for path in rank.iterdir())
    return {int(match[1]) for match in found if match is not None}


def file_of(home: Path, rank: Path, name: str) -> str:
    """Return the path of a file in the rank's directory, with ``/``."""
    return name if home == rank else f"{home.name}/{name}"


def number_of(file: str) -> int | None:
    """Return the part that a file of a rank is in; None for files in no part or in a summary."""
    home, _, name = file.rpartition("/")
    match = re.fullmatch("part([1-9][0-9]{0,8})", home)
    if match is not None:
        return int(match[1])
    return 0 if not home and device_of(name) is not None and is_in_part(name) else None


def is_of_summary(file: str) -> bool:
    """Return whether a file of a rank is in a summary."""
    return re.fullmatch("past[1-9][0-9]*/.*", file) is not None


def remove(home: Path) -> int:
    """Delete the files of a part or a summary; return their size in bytes.

    Foreign files stay, and then the directory stays too. Raises OSError.
    """
    removed_bytes = 0
    for path in home.iterdir():
        if is_in_part(path.name):
            removed_bytes += path.stat().st_size
            path.unlink()
    if not any(home.iterdir()):
        home.rmdir()
    return removed_bytes


def is_in_part(file: str) -> bool:
    """Whether a file of that name belongs to a part, not to the rank."""
    return device_of(file) is not None and file.rpartition("-")[0] in IN_SUMMARIES
