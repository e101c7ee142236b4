"""What makes a prediction less than certain: the operator, why, and the line of the program that met it."""

import sys
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType

import torch

_OURS = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)
_LIBRARIES = (_TORCH, "site-packages", "dist-packages", "<frozen", "<string>", "/lib/python")


class Certainty(IntEnum):
    """How far a figure can be trusted; the worse, the larger."""

    CHECKED = 0
    """Every operator met is one whose memory on CUDA is known and tested."""
    ESTIMATE = 1
    """Something is known within a range only, or was assumed."""
    CANNOT_TELL = 2
    """Something takes memory of which nothing is known; the figures are lower bounds."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason, met once or often."""

    certainty: Certainty
    what: str
    """The operator, or what the program did."""
    why: str
    where: str
    """``train.py:31``; '' where no line of the program is known."""
    is_bounded: bool = True
    """Whether what it adds at most is known, and counted."""

    def __str__(self) -> str:
        at = f" ({self.where})" if self.where else ""
        return f"{self.what}: {self.why}{at}"


class Doubts:
    """Every reason met in one run, with the first line of each."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Doubt] = {}

    def add(
        self,
        certainty: Certainty,
        what: str,
        why: str,
        frame: FrameType | None = None,
        *,
        is_bounded: bool = True,
    ) -> None:
        """Remember a reason, with the line of the program that the caller serves."""
        if (what, why) not in self._found:
            self.put(Doubt(certainty, what, why, own_line(frame or sys._getframe(1)), is_bounded))

    def put(self, doubt: Doubt) -> None:
        """Remember a reason that no line of the program causes."""
        self._found[doubt.what, doubt.why] = doubt

    @property
    def is_bounded(self) -> bool:
        """Whether there is an upper bound."""
        return all(doubt.is_bounded and doubt.certainty < Certainty.CANNOT_TELL for doubt in self.all())

    @property
    def certainty(self) -> Certainty:
        """The worst certainty of all doubts."""
        return max((doubt.certainty for doubt in self._found.values()), default=Certainty.CHECKED)

    def all(self) -> tuple[Doubt, ...]:
        """All doubts, the gravest first."""
        return tuple(sorted(self._found.values(), key=lambda doubt: -doubt.certainty))


def own_line(frame: FrameType | None) -> str:
    """The innermost line that is neither ours nor a library's."""
    frames = own_frames(frame)
    return f"{Path(frames[0][0]).name}:{frames[0][1]}" if frames else ""


def own_frames(frame: FrameType | None) -> tuple[tuple[str, int, str], ...]:
    """File, line and function of every frame that is neither ours nor a library's, innermost first."""
    found = []
    while frame is not None:
        if _is_own(frame):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                break  # what started the program is no part of it
        frame = frame.f_back
    return tuple(found)


def own_line_of(trace: TracebackType | None) -> str:
    """The same of an exception."""
    found = ""
    for frame, line in walk_tb(trace):
        if _is_own(frame):
            found = f"{Path(frame.f_code.co_filename).name}:{line}"
    return found


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs our own code."""
    return frame.f_code.co_filename.startswith(_OURS)


def is_of_a_program(frame: FrameType) -> bool:
    """Whether the frame is the program's or that of a library other than torch."""
    return not frame.f_code.co_filename.startswith((_OURS, _TORCH, "<frozen", "<string>"))


def _is_own(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith(_OURS) and not any(part in file for part in _LIBRARIES)
