"""The headline of a recording: its peak, the largest holder, and the findings."""

from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.findings import collect
from vramscope.analysis.peak import PeakPoint, past_highs
from vramscope.model.finding import Finding
from vramscope.model.past import Past
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_share

from ..data import Data, View, answer
from ..figures.drawing.names import place
from .answers import folded, fullest, held, moment, totals


class Headline(NamedTuple):
    """A claim, and the sentence that supports it."""

    claim: str
    support: str
    stack: int = 0
    """Stack of the largest holder's line; 0 where unknown."""


def claim(data: Data, view: View) -> str:
    """Return the peak in one sentence; it needs only the totals, so it appears with the chart."""
    known, at = totals(data, view).allocated_bytes, fullest(data, view)
    before = past_peak(view.recording.past, "allocated")
    if before is not None and before.n_bytes > known[at]:
        sentence = f"Peak {format_bytes(before.n_bytes)} in {past_words(before)}"
    else:
        sentence = f"Peak {format_bytes(int(known[at]))} at {moment(data, view, at).words}"
    return _out_of_memory(data, view) or sentence


def past_peak(past: Past, quantity: str) -> PeakPoint | None:
    """Return the greatest of one quantity in the part that the size cap removed; None where there is none."""
    return past_highs(past).get(quantity) if past.n_events else None


def past_words(high: PeakPoint) -> str:
    """Return the place of a removed peak, such as ``step 8``."""
    return high.where or "an early part"


def headline(data: Data, view: View) -> Headline:
    """Return the peak in one sentence, and its largest holder in a second."""
    known, at = totals(data, view), fullest(data, view)
    idle = int(known.reserved_bytes[at]) - int(known.allocated_bytes[at])
    unused = f"{format_bytes(idle)} were reserved but unallocated then." if idle > 0 else ""
    since = _since(data, view, at)
    holder = _holder(data, view, at, "that" if since else "the peak")
    support = " ".join(part for part in (since, holder, unused) if part)
    return Headline(claim(data, view), support, _holding(data, view, at))


def _since(data: Data, view: View, at: int) -> str:
    """Return which peak the other sentences are about, where a removed one was higher; else ''."""
    before, here = past_peak(view.recording.past, "allocated"), int(totals(data, view).allocated_bytes[at])
    if before is None or before.n_bytes <= here:
        return ""
    words = moment(data, view, at).words
    highest = f"the highest since is {format_bytes(here)} at {words}."
    return f"The size cap removed the allocations of that peak; {highest}"


def _out_of_memory(data: Data, view: View) -> str:
    """Return the last allocation that raised OutOfMemoryError; '' where none did."""
    trace = view.recording.trace
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed):
        return ""
    event = int(failed[-1])
    asked, had = int(trace.size[event]), int(totals(data, view).allocated_bytes[event])
    words = moment(data, view, event + 1).words
    tried = f"tried to allocate {format_bytes(asked)} with {format_bytes(had)} allocated"
    return f"Out of memory at {words}: {tried}"


def _holder(data: Data, view: View, at: int, whole: str) -> str:
    live, code = held(data, view, at), folded(data, view)
    known = live.folded_id > 0
    if not known.any():
        return f"No stack recorded for {whole}."
    row = int(known.argmax())
    frame = code.stacks.frame(int(live.folded_id[row]))
    share = format_share(int(live.n_bytes[row]), live.total_bytes, 0)
    is_mine = known & (live.folded_id < code.first_library)
    silent = int(live.n_bytes[~is_mine].sum())
    where = place(frame)[:80] + (", a library" if code.is_library(int(live.folded_id[row])) else "")
    sentence = f"{share} of {whole} was allocated by {frame.function[:80]} ({where})"
    if 10 * silent > live.total_bytes:
        sentence += f"; {format_share(silent, live.total_bytes, 0)} has no line of yours"
    return f"{sentence}."


def _holding(data: Data, view: View, at: int) -> int:
    live = held(data, view, at)
    known = live.folded_id > 0
    return int(live.example[int(known.argmax())]) if known.any() else 0


class LatestFindings(NamedTuple):
    """The findings of all analyses, most severe first, and the instant they refer to."""

    findings: list[Finding]
    instant: int
    """Instant up to which they hold: for a live run they are not computed every second."""


def findings(data: Data, view: View) -> LatestFindings:
    """Return the findings of all analyses but the peak, which the headline has already."""
    latest: LatestFindings = data.ask_allowing_stale(view, "findings", lambda: _findings(data, view))
    return latest


def _findings(data: Data, view: View) -> LatestFindings:
    # A live run's answers are not cached: the next version needs others, and all together they are large.
    is_kept = data.live_recording(view) is None

    def ask(name: str) -> Any:
        return data.ask(view, name) if is_kept else answer(view.recording, name)

    return LatestFindings(collect(ask), len(view.recording.trace))
