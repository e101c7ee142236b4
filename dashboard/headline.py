"""The first sentence about a recording: how full, when, and by whom."""

from typing import NamedTuple

from vramscope import analysis
from vramscope.model.finding import Finding
from vramscope.units import format_bytes

from .data import Data, View
from .figures.names import place
from .instant import folded, held, moment, totals


class Headline(NamedTuple):
    """A claim, and what stands behind it."""

    claim: str
    support: str


def headline(data: Data, view: View) -> Headline:
    """The peak in one sentence, its largest holder in a second."""
    known = totals(data, view)
    at = int(known.allocated.argmax())
    peak, reserved = int(known.allocated[at]), int(known.reserved[at])
    where = moment(data, view, at)
    claim = f"Peak {format_bytes(peak)} at {where.words}"
    idle = reserved - peak
    unused = f"{format_bytes(idle)} more were reserved without serving a tensor." if idle > 0 else ""
    return Headline(claim, " ".join(part for part in (_holder(data, view, at), unused) if part))


def _holder(data: Data, view: View, at: int) -> str:
    live, code = held(data, view, at), folded(data, view)
    named = [row for row in range(min(len(live.folded_id), 50)) if live.folded_id[row]]
    if not named or not live.total_bytes:
        return ""
    row = named[0]
    frame = code.stacks.frame(int(live.folded_id[row]))
    share = 100 * int(live.n_bytes[row]) / live.total_bytes
    return f"{share:.0f} % of it was allocated by {frame.function[:80]} ({place(frame)[:80]})."


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
