"""The first sentence about a recording: how full, when, and by whom."""

from typing import NamedTuple

import numpy as np

from vramscope import analysis
from vramscope.model.finding import Finding
from vramscope.model.trace import Action
from vramscope.units import format_bytes

from .data import Data, View
from .figures.names import place
from .instant import folded, held, moment, totals


class Headline(NamedTuple):
    """A claim, and what stands behind it."""

    claim: str
    support: str


def claim(data: Data, view: View) -> str:
    """The peak in one sentence; asks for nothing but the totals, so it is there with the chart."""
    known = totals(data, view).allocated
    at = int(known.argmax())
    peak = format_bytes(int(known[at]))
    return _out_of_memory(data, view) or f"Peak {peak} at {moment(data, view, at).words}"


def headline(data: Data, view: View) -> Headline:
    """The peak in one sentence, its largest holder in a second."""
    known = totals(data, view)
    at = int(known.allocated.argmax())
    idle = int(known.reserved[at]) - int(known.allocated[at])
    unused = f"{format_bytes(idle)} more were reserved then without serving a tensor." if idle > 0 else ""
    support = " ".join(part for part in (_holder(data, view, at), unused) if part)
    return Headline(claim(data, view), support)


def _out_of_memory(data: Data, view: View) -> str:
    """The last allocation that failed for good; '' where none did."""
    trace = view.recording.trace
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed):
        return ""
    event = int(failed[-1])
    asked, had = int(trace.size[event]), int(totals(data, view).allocated[event])
    words = moment(data, view, event + 1).words
    return f"Out of memory at {words}: {format_bytes(asked)} asked for beside {format_bytes(had)} allocated"


def _holder(data: Data, view: View, at: int) -> str:
    live, code = held(data, view, at), folded(data, view)
    known = live.folded_id > 0
    if not known.any():
        return "Who allocated the peak was not recorded."
    row = int(known.argmax())
    frame = code.stacks.frame(int(live.folded_id[row]))
    share = _percent(int(live.n_bytes[row]), live.total_bytes)
    silent = int(live.n_bytes[~known].sum())
    said = f"{share} of the peak was allocated by {frame.function[:80]} ({place(frame)[:80]})"
    if 10 * silent > live.total_bytes:
        said += f"; {_percent(silent, live.total_bytes)} shows no line of yours"
    return f"{said}."


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def findings(data: Data, view: View) -> list[Finding]:
    """What the analyses say unasked, gravest first; the peak is the headline already."""
    said = [
        finding
        for question in analysis.analyses().values()
        if question.findings is not None
        for finding in question.findings(data.ask(view, question.name))
        if finding.kind != "peak"
    ]
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(said, key=lambda finding: rank.get(finding.severity, 3))
