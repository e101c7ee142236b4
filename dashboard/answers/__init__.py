"""What pages ask of a view, one that grows or a finished one: totals, live set, owners and call tree."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.by_module import Owners, owners_of
from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.folding import BytesByLine, Folded, bytes_by_line, fold
from vramscope.analysis.identity import Identity, identity_of
from vramscope.analysis.leaks.holders import holder_words
from vramscope.analysis.lines import CALLERS_SHOWN, lines
from vramscope.analysis.step_and_phase import number_of_step, phase_words
from vramscope.analysis.summary import live_lines
from vramscope.analysis.timeline import Totals
from vramscope.analysis.tree import Tree, tree_of
from vramscope.model.marks import Category
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Stacks
from vramscope.units import format_duration

from ..figures.drawing.series import Series, has_clock, origin_ns, series
from ..queries.findings_process import LatestFindings

if TYPE_CHECKING:
    from ..data import Data, View


@dataclass(frozen=True, slots=True)
class Moment:
    """Time, step and phase of an instant."""

    instant: int
    time: str
    """Time since the recording began; '' without a clock."""
    step: int | None
    phase: str

    @property
    def words(self) -> str:
        """The moment in words, such as ``1.23 s · step 3 · backward``."""
        step = "" if self.step is None else f"step {self.step}"
        return (
            " · ".join(word for word in (self.time, step, self.phase) if word) or f"instant {self.instant:,}"
        )


def totals(data: "Data", view: "View") -> Totals:
    """Return the totals by instant."""
    return data.answers(view).totals()


def fullest(data: "Data", view: "View", quantity: str = "allocated") -> int:
    """Return the first instant of the most *quantity*, which is ``allocated`` or ``reserved``."""
    return data.answers(view).fullest(quantity)


def last_oom(data: "Data", view: "View") -> int:
    """Return the event of the last allocation that raised OutOfMemoryError; −1 where none did."""
    return data.answers(view).last_oom()


def ask_allowing_stale(data: "Data", view: "View", question: str, **options: Any) -> Any:
    """Return the answer of an analysis of the full recording; for a live run it may lag behind."""
    key = (question, *sorted(options.items()))
    return data.answers(view).lagging(key, lambda: data.ask(view, question, **options))


def findings(data: "Data", view: "View") -> LatestFindings:
    """Return the findings of all analyses but the peak; those of a live run lag by some seconds."""
    return data.answers(view).findings()


def series_of(data: "Data", view: "View", axis: str) -> Series:
    """Return the overview's series on one axis."""
    answers = data.answers(view)

    def make(recording: Recording) -> Series:
        return series(recording, answers.totals(), axis, answers.parts_of_series(axis))

    return data.derive(view, ("series", axis), make)


def clamp(data: "Data", view: "View", at: int | None) -> int:
    """Return *at* if the recording has that instant, else the instant of the peak."""
    if at is None or not 0 <= at <= len(view.recording.trace):
        return fullest(data, view)
    return at


def moment(data: "Data", view: "View", at: int) -> Moment:
    """Return time, step and phase of an instant, which are those of the event before it."""
    if not view.is_live:
        return _moment(data, view, at)
    # Each refresh names the same few instants several times, and each time all phases are looked at.
    return data.derive(view, ("moment", at), lambda _: _moment(data, view, at))


def _moment(data: "Data", view: "View", at: int) -> Moment:
    recording, known = view.recording, totals(data, view)
    elapsed = int(known.time_ns[at]) - origin_ns(recording, known)
    time = format_duration(elapsed) if elapsed > 0 else "the start"
    time = time if has_clock(recording) else ""
    return Moment(at, time, number_of_step(recording.steps, max(at - 1, 0)), phase_words(recording, at))


def category_bytes(data: "Data", view: "View", at: int) -> NDArray[Any]:
    """Return allocated bytes at an instant by ``Category``; categories are assigned once per view."""
    category = data.ask(view, "categories").assigned.category
    lives = data.ask(view, "lifetimes")
    live = lives.rows_at(at)
    n_bytes = np.bincount(category[live], weights=lives.block_size[live], minlength=len(Category))
    return n_bytes.astype("i8")


def owners(data: "Data", view: "View") -> Owners:
    """Return the module that each allocation belongs to."""
    lives, known = data.ask(view, "lifetimes"), data.ask(view, "categories")
    return data.derive(view, "owners", lambda r: owners_of(r, lives, known.assigned))


def folded(data: "Data", view: "View") -> Folded:
    """Return the stacks without frames of the framework."""
    stacks = view.recording.stacks
    return data.answers(view).kept(("folded", len(stacks)), lambda: _named(stacks))


def _named(stacks: Stacks) -> Folded:
    """Fold *stacks*; bytes without a stack are a row apart from stacks without a named frame."""
    code = fold(stacks)
    via = code.via.copy()
    via[0] = len(code.strings)
    return replace(code, via=via, strings=(*code.strings, ""))


def held(data: "Data", view: "View", at: int) -> BytesByLine:
    """Return the holders of the live memory at an instant, by the user's line."""
    code = folded(data, view)

    def make() -> BytesByLine:
        rows = stacks_at(data, view, at)
        return bytes_by_line(code, rows.stack_id, rows.bytes, rows.count)

    return data.answers(view).kept(("held", at, len(view.recording.stacks)), make)


def kept_by(data: "Data", view: "View", at: int) -> Mapping[Any, str]:
    """Return who keeps what is live at an instant, by frame, caller and library function of a line."""
    if view.is_live or not len(view.recording.holders):
        return {}

    def names(recording: Recording) -> dict[Any, str]:
        return {
            (line.frames[: 1 + CALLERS_SHOWN], line.via): holder_words(line.holders)
            for line in lines(live_lines(recording, at))
        }

    return data.derive(view, ("kept by", at), names)


def stacks_at(data: "Data", view: "View", at: int) -> StackBytes:
    """Return the live bytes at an instant by call stack."""
    return data.answers(view).stacks_at(at)


def tree_at(data: "Data", view: "View", at: int) -> Tree:
    """Return the tree of the calls that lead to the live memory at an instant."""
    rows, code = stacks_at(data, view, at), folded(data, view)
    return data.derive(view, ("tree", at), lambda recording: tree_of(recording.stacks, rows, known=code))


def parts_of_reserved(data: "Data", view: "View", at: int) -> dict[str, int]:
    """Return the parts of the reserved bytes at an instant by name."""
    found: Identity = data.derive(view, ("parts", at), lambda _: identity_of(state_of(data, view, at)))
    return found.parts


def state_of(data: "Data", view: "View", at: int) -> Snapshot:
    """Return segments and blocks at an instant."""
    return data.derive(view, ("state", at), lambda _: data.answers(view).state_at(at))


def neighbor(data: "Data", view: "View", at: int, direction: int) -> int | None:
    """Return the instant of the peak of the next (1) or previous (−1) step; None where there is none."""
    steps = view.recording.steps
    here = int((steps.start_event < at).sum()) - 1
    row = here + direction
    if not direction or not 0 <= row < len(steps):
        return None
    return fullest_of_step(data, view, row)


def fullest_of_step(data: "Data", view: "View", row: int) -> int:
    """Return the instant of a step at which most is allocated."""
    steps, allocated = view.recording.steps, totals(data, view).allocated_bytes
    # While a run grows its marks may be ahead of its events.
    start = min(int(steps.start_event[row]), len(allocated) - 1)
    return start + int(allocated[start : int(steps.end_event[row]) + 1].argmax())
