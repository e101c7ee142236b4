"""In which directories does a trace go on? One grows; whole ones may be taken, oldest first.

The first part is the rank's own directory. A trace that never outgrew its cap has no other, and is what
readers before schema 2 know.
"""

import re
from pathlib import Path

from vramscope.store.manifest import Cap
from vramscope.store.schema import IN_SUMMARIES, device_of


def part(rank: Path, number: int) -> Path:
    """The directory of a part: 0 is the rank's own."""
    return rank / f"part{number}" if number else rank


def past(rank: Path, generation: int) -> Path:
    """The directory of what is left of the parts that were taken; a new one each time."""
    return rank / f"past{generation}"


def homes(rank: Path, cap: Cap | None) -> list[Path]:
    """Where the streams of a rank are, in the order in which they go on."""
    if cap is None:
        return [rank]
    begin = [past(rank, cap.generation)] if cap.generation else []
    numbers = range(cap.first_part, _last(rank, cap.first_part) + 1)
    return [*begin, *(part(rank, number) for number in numbers)]


def _last(rank: Path, first: int) -> int:
    found = (re.fullmatch("part([0-9]{1,9})", path.name) for path in rank.iterdir())
    return max((int(match[1]) for match in found if match is not None), default=first)


def remove(home: Path) -> int:
    """Take a part's or a summary's files; the bytes they had. Others' files stay, and so does the directory
    then. Raises OSError."""
    taken = 0
    for path in home.iterdir():
        if is_in_part(path.name):
            taken += path.stat().st_size
            path.unlink()
    if not any(home.iterdir()):
        home.rmdir()
    return taken


def is_in_part(file: str) -> bool:
    """Whether a file of that name belongs to a part, not to the rank."""
    return device_of(file) is not None and file.rpartition("-")[0] in IN_SUMMARIES
