"""The members of a comparison, a rank on a device each, and their bytes by line as a matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramscope.model.rank_summary import DeviceSummary, LineBytes, RankSummary
from vramscope.model.recording import Outcome

MOST_LINES = 400
"""The most lines that are compared, by their bytes in all ranks; the rest is one column."""
_FRAMES = 2
"""Two lines are the same if their innermost frames and the function they call are."""

_EMBEDDINGS = frozenset({"sparse.__init__"})
"""The constructors of ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``, as lines call them."""

LineKey = tuple[Any, ...]


class MemberKey(NamedTuple):
    """What identifies a member: a rank on one device."""

    rank: int
    device: int
    """The index of the device."""


class Member(NamedTuple):
    """One rank on one device."""

    whole: RankSummary
    summary: DeviceSummary

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.whole.process.rank

    @property
    def host(self) -> str:
        """The host that the rank runs on."""
        return self.whole.process.host

    @property
    def key(self) -> MemberKey:
        """Rank and index of the device."""
        return MemberKey(self.rank, self.summary.device.index)

    @property
    def outcome(self) -> Outcome:
        """How the rank ended."""
        return self.whole.outcome


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable:
    """All members, with a row of bytes each."""

    members: tuple[Member, ...]
    examples: tuple[LineBytes | None, ...]
    """The line of each column; None for the last, which has the rest."""
    line_bytes: NDArray[Any]
    """Bytes at the own peak, by member and line."""
    retained_bytes: NDArray[Any]
    """The part of these bytes that was allocated in earlier steps."""
    allocated_bytes: NDArray[Any]
    """The peak of allocated bytes of each member."""
    reserved_bytes: NDArray[Any]
    """The peak of reserved bytes of each member."""


def line_key(line: LineBytes) -> LineKey:
    """What makes two lines of different ranks the same."""
    return (*line.frames[:_FRAMES], line.via)


def table_of(members: Sequence[Member]) -> MemberTable:
    """Put the lines of all members into one matrix."""
    total: dict[LineKey, int] = {}
    examples: dict[LineKey, LineBytes] = {}
    for member in members:
        for line in (*member.summary.lines, *member.summary.retained):
            key = line_key(line)
            total[key] = total.get(key, 0) + line.n_bytes
            examples.setdefault(key, line)
    chosen = sorted(total, key=lambda key: (-total[key], repr(key)))[:MOST_LINES]
    column = {key: number for number, key in enumerate(chosen)}
    lines = np.zeros((len(members), len(chosen) + 1))
    retained = np.zeros_like(lines)
    for row, member in enumerate(members):
        lines[row, -1] = member.summary.other_bytes
        for line in member.summary.lines:
            lines[row, column.get(line_key(line), -1)] += line.n_bytes
        for line in member.summary.retained:
            retained[row, column.get(line_key(line), -1)] += line.n_bytes
    return MemberTable(
        tuple(members),
        (*(examples[key] for key in chosen), None),
        lines,
        retained,
        _peaks(members, "allocated"),
        _peaks(members, "reserved"),
    )


def _peaks(members: Sequence[Member], quantity: str) -> NDArray[Any]:
    found = (member.summary.peak.get(quantity) for member in members)
    return np.array([0 if place is None else place.n_bytes for place in found], "f8")


def bytes_by_line(table: MemberTable, lines: Sequence[LineBytes]) -> NDArray[Any]:
    """The bytes of *lines* in the columns of *table*."""
    column = {
        line_key(example): number for number, example in enumerate(table.examples) if example is not None
    }
    found = np.zeros(table.line_bytes.shape[1])
    for line in lines:
        found[column.get(line_key(line), -1)] += line.n_bytes
    return found


def is_embedding(line: LineBytes | None) -> bool:
    """Whether a line allocates the parameters of an embedding."""
    return line is not None and line.via in _EMBEDDINGS
