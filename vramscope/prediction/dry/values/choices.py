"""Decides what a value that nobody computed counts as, where the program takes a branch by it.

The first dry run takes each such value as 0. Others answer one place of the program otherwise, so that what
depends on the branch is run instead of guessed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

from vramscope.prediction.dry.doubts import is_of_a_program, own_line

_TRUTHS = {"always true": True, "always false": False}
_MORE_OFTEN, _AND_MORE = 10, 100
"""How much more often than in the first run a place may ask: a loop may wait for an answer for ever."""


_DRAWN, _FAR = 2, 6.0
_FROM = 300.0
"""Where numbers begin to rise, or to fall: past most thresholds, and ``math.exp`` does not overflow."""


class Enough(BaseException):
    """Leaves the program, past every ``except Exception``: it has run as far as it should."""


class Otherwise(NamedTuple):
    """The answer that one place of the program gets in a dry run."""

    key: str
    """The file and the line that ask, which may be a library's."""
    answer: str
    """``always true``, ``always false``, or a number that is ``rising`` or ``falling``."""
    most_asked: int
    """How often the place may ask before the run ends."""


class Choice(NamedTuple):
    """A place of the program that decides by a value that nobody computed."""

    what: str
    where: str
    """The program's own line, ``train.py:31``."""
    otherwise: tuple[Otherwise, ...]
    """Every other way to answer it."""


@dataclass(slots=True)
class _Asked:
    what: str
    where: str
    truths: set[bool] = field(default_factory=set)
    n_numbers: int = 0
    n: int = 0

    def answers(self) -> Iterable[str]:
        if self.truths:
            yield from (word for word, truth in _TRUTHS.items() if self.truths != {truth})
        if self.n_numbers:
            yield from ("rising", "falling")


class Choices:
    """The places of one dry run that asked, of which one may be answered otherwise."""

    def __init__(self, otherwise: Otherwise | None = None) -> None:
        self._otherwise = otherwise
        self._asked: dict[str, _Asked] = {}
        self._drawing: FrameType | None = None
        self._n_drawn = 0
        self.is_endless = False
        """Whether the place asked so often that the run has to end."""

    def truth(self, what: str, assumed: bool, frame: FrameType | None) -> bool:
        """Return whether a comparison is true: *assumed*, unless this run answers otherwise."""
        asked, answer = self._ask(what, frame)
        found = assumed if answer is None else _TRUTHS.get(answer, assumed)
        asked.truths.add(assumed)
        return found

    def number(self, what: str, assumed: float, frame: FrameType | None) -> float:
        """Return *assumed*, or a large number that rises or a negative one that falls with every call."""
        asked, answer = self._ask(what, frame)
        asked.n_numbers += 1
        if answer not in ("rising", "falling"):
            return assumed
        found = _FROM + asked.n_numbers
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

    def _ask(self, what: str, frame: FrameType | None) -> tuple[_Asked, str | None]:
        key = _key(frame)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(what, own_line(frame))
        asked.n += 1
        if self._otherwise is None or key != self._otherwise.key:
            return asked, None
        self.is_endless = self.is_endless or asked.n > self._otherwise.most_asked
        return asked, self._otherwise.answer

    def all(self) -> tuple[Choice, ...]:
        """Return every place that asked, in the order of the program."""
        return tuple(
            Choice(
                asked.what,
                asked.where,
                tuple(
                    Otherwise(key, answer, _MORE_OFTEN * asked.n + _AND_MORE) for answer in asked.answers()
                ),
            )
            for key, asked in self._asked.items()
        )


def _key(frame: FrameType | None) -> str:
    while frame is not None and not is_of_a_program(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
