"""The headline of a recording: its peak, the largest holder, the findings, and when it reaches the limit."""

from typing import NamedTuple

from vramscope.analysis.forecast import NOTHING_KNOWN, Outlook, forecast
from vramscope.analysis.peak import PeakPoint, bare_highs
from vramscope.analysis.verdicts import is_exact
from vramscope.analysis.verdicts.missing import missing_parts
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording
from vramscope.units import format_bytes, format_share

from ..answers import folded, fullest, held, last_oom, moment, totals
from ..answers.lagging import Lag
from ..data import Data, View
from ..figures.drawing.names import place

_OF_FORECASTS = Lag(longer=1.05, meanwhile=NOTHING_KNOWN)
"""No page of a live run waits for a forecast: it takes 1 s per million events."""


class Headline(NamedTuple):
    """A claim, and the sentence that supports it."""

    claim: str
    support: str
    stack: int = 0
    """Stack of the largest holder's line; 0 where unknown."""


def claim(data: Data, view: View) -> str:
    """Return failure or peak in one sentence; it needs only the totals, so it appears with the chart."""
    return out_of_memory(data, view) or _peak(data, view)


def _peak(data: Data, view: View) -> str:
    known, at = totals(data, view).allocated_bytes, fullest(data, view)
    before = past_peak(view.recording, "allocated")
    if before is not None and before.n_bytes > known[at]:
        return f"Peak {bound(view)}{format_bytes(before.n_bytes)} in {past_words(before)}"
    return f"Peak {bound(view)}{format_bytes(int(known[at]))} at {moment(data, view, at).words}"


def bound(view: View) -> str:
    """Return ``at least`` with a space for figures of a recording that lacks events, else ''."""
    return "" if is_exact(missing_parts(view.recording)) else "at least "


def past_peak(recording: Recording, quantity: str) -> PeakPoint | None:
    """Return the greatest of one quantity in all that has no events; None where everything has."""
    return bare_highs(recording).get(quantity)


def past_words(high: PeakPoint) -> str:
    """Return the place of a removed peak, such as ``step 8``."""
    return high.where or "an early part"


def headline(data: Data, view: View) -> Headline:
    """Return the failure or the peak in one sentence, and the peak's largest holder in a second."""
    known, at = totals(data, view), fullest(data, view)
    idle = int(known.reserved_bytes[at]) - int(known.allocated_bytes[at])
    unused = f"{format_bytes(idle)} were reserved but unallocated then." if idle > 0 else ""
    since = _since(data, view, at)
    holder = _holder(data, view, at, "that" if since else "the peak")
    failed = out_of_memory(data, view)
    peak = f"{_peak(data, view)}." if failed else ""
    support = " ".join(part for part in (peak, since, holder, unused) if part)
    most = held(data, view, at).most(folded(data, view))
    return Headline(failed or _peak(data, view), support, most.example if most else 0)


def _since(data: Data, view: View, at: int) -> str:
    """Return which peak the other sentences are about, where a removed one was higher; else ''."""
    before, here = past_peak(view.recording, "allocated"), int(totals(data, view).allocated_bytes[at])
    if before is None or before.n_bytes <= here:
        return ""
    words = moment(data, view, at).words
    which = "since" if view.recording.past.n_events else "with events"
    highest = f"the highest {which} is {format_bytes(here)} at {words}."
    return f"No allocations of that peak are retained; {highest}"


def out_of_memory(data: Data, view: View) -> str:
    """Return the last allocation that raised OutOfMemoryError; '' where none did."""
    event = last_oom(data, view)
    if event < 0:
        return ""
    asked, had = int(view.recording.trace.size[event]), int(totals(data, view).allocated_bytes[event])
    words = moment(data, view, event + 1).words
    what = f"to allocate {format_bytes(asked)} with {format_bytes(had)} allocated"
    if view.recording.source == "predicted":
        return f"Would run out of memory at {words}: would try {what}"
    return f"Out of memory at {words}: tried {what}"


def beyond_heading(failed: Finding) -> tuple[str, str]:
    """Return the figures of a failed allocation, and why it failed, which the heading does not have."""
    figures, _, why = failed.claim.partition(". ")
    return figures, why


def _holder(data: Data, view: View, at: int, whole: str) -> str:
    live, code = held(data, view, at), folded(data, view)
    most = live.most(code)
    if most is None:
        return f"No stack recorded for {whole}."
    frame = code.stacks.frame(most.folded_id)
    share = format_share(most.n_bytes, live.total_bytes, 0)
    is_mine = (live.folded_id > 0) & (live.folded_id < code.first_library)
    silent = int(live.n_bytes[~is_mine].sum())
    where = place(frame) + (", a library" if code.is_library(most.folded_id) else "")
    sentence = f"{share} of {whole} was allocated by {frame.function[:80]} ({where})"
    if 10 * silent > live.total_bytes:
        sentence += f"; {format_share(silent, live.total_bytes, 0)} has no line of yours"
    return f"{sentence}."


def leading(found: list[Finding]) -> str | None:
    """Return the claim of a leak or a growing batch, which matters more than the peak; None without one.

    A failed allocation is in the claim about the peak already.
    """
    kinds = (FindingKind.LEAK, FindingKind.GROWING_BATCH)
    if not found or found[0].kind not in kinds:
        return None
    claim = found[0].claim[:300]
    return f"{claim[:1].upper()}{claim[1:]}"


def forecast_words(outlook: Outlook) -> list[str]:
    """Return a few words for a header, the whole sentence, and the tone; nothing where nothing is known."""
    return [outlook.short, outlook.text, "near" if outlook.forecast else ""] if outlook.text else []


def ahead(data: Data, view: View) -> Outlook:
    """Return the outlook of a recording; of a live one, that of its version some seconds ago.

    Header and page ask one after the other, and a forecast may be made in between: the first that a version
    has is that of all its parts.
    """
    known: Outlook
    if not view.is_live:
        data.ask(view, "leaks")  # the forecast begins with them
        known = data.derive(view, "outlook", forecast)
        return known
    latest = data.answers(view).lagging("forecast", lambda: forecast(view.recording), _OF_FORECASTS)
    known = latest if latest == NOTHING_KNOWN else data.derive(view, "outlook so far", lambda _: latest)
    return known
