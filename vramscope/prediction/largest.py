"""The largest batch, or the longest sequence, that fits: a search over dry runs.

Peaks grow almost linearly with a batch, so each size that fits says where to look next. The end is always
shown by runs of their own: one size that fits, and the next one, which does not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vramscope.errors import VramscopeError
from vramscope.model.prediction import Prediction
from vramscope.prediction.answering import discard

_MOST_TRIALS = 24
_MOST_SIZE = 1 << 24
"""Sizes above this one are not tried: the size is then taken to have no effect."""


@dataclass(frozen=True, slots=True)
class SizeTrial:
    """One dry run with one size."""

    size: int
    fits: bool | None
    """Whether it fits; None if that is not known."""
    peak_reserved_bytes: int
    problem: str = ""
    """Why there is no answer for this size; '' if there is one."""


@dataclass(frozen=True, slots=True)
class LargestSize:
    """The result of a search, complete or not."""

    trials: tuple[SizeTrial, ...]
    """In the order in which they were run."""
    problem: str = ""
    """Why the search ended without an answer; '' if it has one, or was stopped."""

    @property
    def fitting(self) -> int | None:
        """The largest size that surely fits; None if none does."""
        below = self.too_large or float("inf")
        return max((each.size for each in self.trials if each.fits and each.size < below), default=None)

    @property
    def first_open(self) -> int | None:
        """The smallest size above ``fitting`` that was tried and is not known to fit."""
        low = self.fitting or 0
        return min((each.size for each in self.trials if not each.fits and each.size > low), default=None)

    @property
    def too_large(self) -> int | None:
        """The smallest size that surely does not fit; None if none was found."""
        return min((each.size for each in self.trials if each.fits is False), default=None)

    @property
    def is_exact(self) -> bool:
        """Whether the next size after ``fitting`` was run and does not fit."""
        too_large = self.too_large
        return too_large is not None and too_large == (self.fitting or 0) + 1

    @property
    def contradictions(self) -> tuple[SizeTrial, ...]:
        """Sizes that fit although a smaller one does not: the need does not grow with the size."""
        too_large = self.too_large
        return tuple(
            each for each in self.trials if each.fits and too_large is not None and each.size > too_large
        )


def largest_of(
    answer: Callable[[int], Prediction],
    start: int,
    room_bytes: int,
    note: Callable[[LargestSize], None] = lambda _: None,
) -> LargestSize:
    """Return the largest size with which a program fits, from dry runs whose recordings are not kept.

    *answer* predicts the program with a size; all else is as in ``search_largest``.
    """

    def trial(size: int) -> SizeTrial:
        try:
            found = answer(size)
        except VramscopeError as error:
            return SizeTrial(size, None, 0, str(error))
        discard(found)
        return SizeTrial(size, found.fits, found.peak_reserved_bytes)

    return search_largest(start, room_bytes, trial, note)


def search_largest(
    start: int, room_bytes: int, trial: Callable[[int], SizeTrial], note: Callable[[LargestSize], None]
) -> LargestSize:
    """Return the largest size that fits, by as few dry runs as possible.

    *start* is at least 1; *room_bytes* only decide where to look next. *note* receives what is known after
    each run: a caller that is stopped keeps it. The result ``is_exact`` if the limit was found.
    """
    found = LargestSize(())
    size: int | None = start
    while size is not None and len(found.trials) < _MOST_TRIALS:
        outcome = trial(size)
        found = LargestSize((*found.trials, outcome), outcome.problem)
        note(found)
        if outcome.problem:
            break
        size = next_size(found, room_bytes)
    return found


def next_size(found: LargestSize, room_bytes: int) -> int | None:
    """Return the size to try next; None if the answer is known, or cannot be found."""
    low, high = found.fitting or 0, found.first_open
    if high is None:
        wanted = _crossing(found, room_bytes) or 2 * max(low, 1)
        return min(max(wanted, low + 1), 8 * max(low, 1)) if low < _MOST_SIZE else None
    if high - low <= 1:
        return None
    crossing = _crossing(found, room_bytes)
    if crossing is None or not low < crossing < high or _is_slow(found):
        return (low + high) // 2
    return crossing


def _is_slow(found: LargestSize) -> bool:
    """Return whether the line through the figures has had its chance: every third trial halves."""
    n_after = sum(1 for each in found.trials if not each.fits)
    return n_after > 1 and n_after % 3 == 0


def _crossing(found: LargestSize, room_bytes: int) -> int | None:
    """Return the largest size below the room, on a line through the two largest sizes that fit."""
    fitting = sorted({each.size: each.peak_reserved_bytes for each in found.trials if each.fits}.items())
    if len(fitting) < 2:
        return None
    (one, below), (other, above) = fitting[-2:]
    slope = (above - below) / (other - one)
    if slope <= 0:
        return None
    wanted = int(other + (room_bytes - above) / slope)
    tried = {each.size for each in found.trials}
    # The line is right: the size after it decides.
    return wanted + 1 if wanted in tried else wanted
