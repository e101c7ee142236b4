"""Decides what a value that nobody computed counts as, where the program takes a branch by it.

The first dry run takes each such value as 0. Others answer one place of the program otherwise, so that what
depends on the branch is run instead of guessed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType

from vramscope.model.prediction import ChangedAnswer, Choice
from vramscope.prediction.dry.doubts import is_of_a_program, own_line

_TRUTHS = {"always true": True, "always false": False}
_MORE_OFTEN, _AND_MORE = 10, 100
"""How much more often than in the first run a place may ask: a loop may wait for an answer for ever."""


_DRAWN, _FAR = 2, 6.0
_FROM = 300.0
"""Where numbers begin to rise, or to fall: past most thresholds, and ``math.exp`` does not overflow."""


class Enough(BaseException):
    """Leaves the program, past every ``except Exception``: it has run as far as it should."""


@dataclass(slots=True)
class _Place:
    """A place of the program that decides by such values, and what they counted as."""

    what: str
    where: str
    truths: set[bool] = field(default_factory=set)
    n_numbers: int = 0
    n: int = 0

    def changed(self, key: str) -> Iterable[ChangedAnswer]:
        """Every other way to answer it."""
        for answer in self._others():
            yield ChangedAnswer(key, answer, _MORE_OFTEN * self.n + _AND_MORE)

    def _others(self) -> Iterable[str]:
        if self.truths:
            yield from (word for word, truth in _TRUTHS.items() if self.truths != {truth})
        if self.n_numbers:
            yield from ("rising", "falling")


class Choices:
    """The places of one dry run that decide, of which one may get another answer."""

    def __init__(self, changed: ChangedAnswer | None = None) -> None:
        self._changed = changed
        self._places: dict[str, _Place] = {}
        self._drawing: FrameType | None = None
        self._n_drawn = 0
        self.is_endless = False
        """Whether the place asked so often that the run has to end."""

    def truth(self, what: str, assumed: bool, frame: FrameType | None) -> bool:
        """Return whether a comparison is true: *assumed*, unless this run answers otherwise."""
        place, answer = self._answer_of(what, frame)
        found = assumed if answer is None else _TRUTHS.get(answer, assumed)
        place.truths.add(assumed)
        return found

    def number(self, what: str, assumed: float, frame: FrameType | None) -> float:
        """Return *assumed*, or a large number that rises or a negative one that falls with every call."""
        place, answer = self._answer_of(what, frame)
        place.n_numbers += 1
        if answer not in ("rising", "falling"):
            return assumed
        found = _FROM + place.n_numbers
        return found if answer == "rising" else -found

    def draws_again(self, frame: FrameType) -> bool:
        """Return whether ``trunc_normal_`` finds numbers out of bounds: twice, as nearly always.

        From the second time on each takes what the one before took. Bounds of more than 6 standard deviations
        are never passed.
        """
        given = [frame.f_locals.get(name) for name in ("mean", "std", "a", "b")]
        mean, std, low, high = (one if isinstance(one, int | float) else 0.0 for one in given)
        if min(mean - low, high - mean) > _FAR * std:
            return False
        self._n_drawn = self._n_drawn + 1 if frame is self._drawing else 1
        # The frame is kept as long as it goes on: it has the program's tensors.
        self._drawing = frame if self._n_drawn <= _DRAWN else None
        return self._drawing is not None

    def _answer_of(self, what: str, frame: FrameType | None) -> tuple[_Place, str | None]:
        key = _key(frame)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(what, own_line(frame))
        place.n += 1
        if self._changed is None or key != self._changed.key:
            return place, None
        self.is_endless = self.is_endless or place.n > self._changed.most_asked
        return place, self._changed.answer

    def all(self) -> tuple[Choice, ...]:
        """Return every place that asked, in the order of the program."""
        return tuple(
            Choice(place.what, place.where, tuple(place.changed(key))) for key, place in self._places.items()
        )


def _key(frame: FrameType | None) -> str:
    while frame is not None and not is_of_a_program(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
