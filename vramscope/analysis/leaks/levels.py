"""Allocated bytes of each line of the program, at the same point of every step."""

from dataclasses import dataclass

import numpy as np

from vramscope.allocator.settings import GRANULE, SMALL_LIMIT
from vramscope.analysis.folding import calls_of_backward, fold
from vramscope.analysis.leaks.iterations import between_steps_with_events
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.model.table import Array, sums_of

Place = tuple[Frame | None, bool]
"""A line of the program, None if not known; and whether it only called the backward that allocated, on a
thread without Python frames."""


@dataclass(frozen=True, slots=True)
class LeakingLine:
    """A line that allocates what grows."""

    frame: Frame | None
    """None if no stack was recorded."""
    is_in_backward: bool
    """Whether it only called the backward that allocated, which has no stack of its own."""
    bytes_per_step: float


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Allocations, counted at the compared instants ``at``."""

    recording: Recording
    found: Allocations
    at: Array
    """The compared instants, in order."""
    stride: int
    """Steps from one instant to the next."""
    place: Array
    """Line of the program of each allocation, as an index into ``places``."""
    places: tuple[Place, ...]
    """The lines of the program."""
    born: Array
    """Index of the first instant after the birth of each allocation."""
    gone: Array
    """Index of the first instant after its death; ``len(at)`` if it is alive at the last one."""
    n_bytes: Array
    """Bytes of each allocation, without a rest that is too small to split off: what is free decides it."""

    @property
    def lasting(self) -> Array:
        """Return the rows that are allocated at any of the instants."""
        return np.flatnonzero(self.born < self.gone)

    def series(self, rows: Array) -> Array:
        """Return the bytes of these rows at each instant, shape ``(len(at),)``."""
        return self._summed(rows, self.n_bytes[rows])

    def count(self, rows: Array) -> Array:
        """Return the number of these rows' blocks at each instant, shape ``(len(at),)``."""
        return self._summed(rows, np.ones(len(rows), "i8"))

    def _summed(self, rows: Array, values: Array) -> Array:
        came, went = (sums_of(at[rows], values, len(self.at) + 1) for at in (self.born, self.gone))
        return np.cumsum(came - went)[:-1]

    def by_place(self) -> dict[int, Array]:
        """Return the lasting rows of each place that has more bytes at the last instant than at the first."""
        rows = self.lasting
        size = self.n_bytes[rows]
        signs = (self.gone[rows] == len(self.at)).astype("i8") - (self.born[rows] == 0)
        gain = sums_of(self.place[rows], signs * size, len(self.places))
        rows = rows[gain[self.place[rows]] > 0]
        order = rows[np.argsort(self.place[rows], kind="stable")]
        edges = np.flatnonzero(np.diff(self.place[order])) + 1
        return {int(self.place[part[0]]): part for part in np.split(order, edges) if len(part)}


def levels_of(recording: Recording, at: Array, stride: int) -> Levels:
    """Count allocations at the instants *at*.

    This takes 0.5 s per million events, most of it the pairing of births and deaths.
    """
    found = lifetimes(recording)
    place, places = _places(recording, found)
    end = np.where(found.free_event == ALIVE, len(recording.trace) + 1, found.free_event)
    # At instant k the events before k have happened.
    born, gone = (np.searchsorted(at, event, side="right") for event in (found.alloc_event, end))
    is_bare = between_steps_with_events(recording, found.alloc_event)
    rounded = -(-found.size // GRANULE) * GRANULE
    has_rest = (found.size > SMALL_LIMIT) & (found.block_size - rounded <= SMALL_LIMIT)
    return Levels(
        recording=recording,
        found=found,
        at=at,
        stride=stride,
        place=place,
        places=places,
        born=np.where(is_bare, len(at), born),
        gone=np.where(is_bare, len(at), gone),
        n_bytes=np.where(has_rest, rounded, found.block_size),
    )


def _places(recording: Recording, found: Allocations) -> tuple[Array, tuple[Place, ...]]:
    """Return the place of each allocation: the user's innermost frame stands for the whole stack."""
    folded = fold(recording.stacks)
    own = folded.of[found.stack_id]
    called_at = np.zeros_like(own)
    bare = np.flatnonzero(own == 0)
    called_at[bare] = calls_of_backward(recording, found, own, found.alloc_event[bare])
    places: dict[Place, int] = {(None, False): 0}
    # One number encodes both, so that a table gives the place: sorting them all would take most of the time.
    key = 2 * np.where(own > 0, own, called_at) + (own == 0)
    is_there = np.zeros(2 * len(folded.stacks), dtype="?")
    is_there[key] = True
    index = np.zeros(len(is_there), dtype="i8")
    for each in np.flatnonzero(is_there).tolist():
        i, in_backward = divmod(each, 2)
        name = (folded.stacks.frame(i), bool(in_backward)) if i else (None, False)
        index[each] = places.setdefault(name, len(places))
    return index[key], tuple(places)
