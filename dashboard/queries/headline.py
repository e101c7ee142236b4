"""The first sentence about a recording: how full, when, and by whom."""

from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.findings import collect
from vramscope.analysis.peak import High, past_highs
from vramscope.model.finding import Finding
from vramscope.model.past import Past
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_share

from ..data import Data, View, answer
from ..figures.drawing.names import place
from .answers import folded, fullest, held, moment, totals


class Headline(NamedTuple):
    """A claim, and what stands behind it."""

    claim: str
    support: str
    stack: int = 0
    """That leads to the largest holder's line; 0 where it is not known."""


def claim(data: Data, view: View) -> str:
    """The peak in one sentence; asks for nothing but the totals, so it is there with the chart."""
    known, at = totals(data, view).allocated, fullest(data, view)
    before = past_peak(view.recording.past, "allocated")
    if before is not None and before.n_bytes > known[at]:
        said = f"Peak {format_bytes(before.n_bytes)} in {past_words(before)}"
    else:
        said = f"Peak {format_bytes(int(known[at]))} at {moment(data, view, at).words}"
    return _out_of_memory(data, view) or said


def past_peak(past: Past, quantity: str) -> High | None:
    """The most of one quantity in the part whose events a size cap took; None where none were."""
    return past_highs(past).get(quantity) if past.n_events else None


def past_words(high: High) -> str:
    """``step 8``."""
    return high.where or "an early part"


def headline(data: Data, view: View) -> Headline:
    """The peak in one sentence, its largest holder in a second."""
    known, at = totals(data, view), fullest(data, view)
    idle = int(known.reserved[at]) - int(known.allocated[at])
    unused = f"{format_bytes(idle)} were reserved but unallocated then." if idle > 0 else ""
    since = _since(data, view, at)
    holder = _holder(data, view, at, "that" if since else "the peak")
    support = " ".join(part for part in (since, holder, unused) if part)
    return Headline(claim(data, view), support, _holding(data, view, at))


def _since(data: Data, view: View, at: int) -> str:
    """Which peak the other sentences are about, where an earlier one was higher; '' elsewhere."""
    before, here = past_peak(view.recording.past, "allocated"), int(totals(data, view).allocated[at])
    if before is None or before.n_bytes <= here:
        return ""
    words = moment(data, view, at).words
    return (
        f"The size cap removed the detail of that peak; the highest since is {format_bytes(here)} at {words}."
    )


def _out_of_memory(data: Data, view: View) -> str:
    """The last allocation that failed for good; '' where none did."""
    trace = view.recording.trace
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed):
        return ""
    event = int(failed[-1])
    asked, had = int(trace.size[event]), int(totals(data, view).allocated[event])
    words = moment(data, view, event + 1).words
    tried = f"tried to allocate {format_bytes(asked)} with {format_bytes(had)} allocated"
    return f"Out of memory at {words}: {tried}"


def _holder(data: Data, view: View, at: int, whole: str) -> str:
    live, code = held(data, view, at), folded(data, view)
    known = live.folded_id > 0
    if not known.any():
        return f"No call stack was recorded for {whole}."
    row = int(known.argmax())
    frame = code.stacks.frame(int(live.folded_id[row]))
    share = format_share(int(live.n_bytes[row]), live.total_bytes, 0)
    is_mine = known & (live.folded_id < code.first_library)
    silent = int(live.n_bytes[~is_mine].sum())
    where = place(frame)[:80] + (", a library" if code.is_library(int(live.folded_id[row])) else "")
    said = f"{share} of {whole} was allocated by {frame.function[:80]} ({where})"
    if 10 * silent > live.total_bytes:
        said += f"; {format_share(silent, live.total_bytes, 0)} shows no line of yours"
    return f"{said}."


def _holding(data: Data, view: View, at: int) -> int:
    live = held(data, view, at)
    known = live.folded_id > 0
    return int(live.example[int(known.argmax())]) if known.any() else 0


class LatestFindings(NamedTuple):
    """What the analyses say unasked, gravest first."""

    findings: list[Finding]
    instant: int
    """As of which: while a run grows they are not asked every second."""


def findings(data: Data, view: View) -> LatestFindings:
    """Of all analyses; the peak is the headline already."""
    said: LatestFindings = data.ask_allowing_stale(view, "findings", lambda: _findings(data, view))
    return said


def _findings(data: Data, view: View) -> LatestFindings:
    # Of a run that grows no answer is kept: nobody asks for it again, and all of them together are large.
    is_kept = data.live_recording(view) is None

    def ask(name: str) -> Any:
        return data.ask(view, name) if is_kept else answer(view.recording, name)

    return LatestFindings(collect(ask), len(view.recording.trace))
