"""When a run reaches the limit of its device, for the header and the overview."""

from typing import TYPE_CHECKING

from vramscope.analysis.forecast import NOTHING_KNOWN, Outlook, forecast, forecast_of

from .lagging import Lag

if TYPE_CHECKING:
    from ..data import Data, View

_OF_FORECASTS = Lag(longer=1.05, meanwhile=NOTHING_KNOWN)
"""No page of a live run waits for a forecast: it takes 1 s per million events."""


def words(outlook: Outlook) -> list[str]:
    """Return a few words for a header, the whole sentence, and the tone; nothing where nothing is known."""
    return [outlook.short, outlook.text, "near" if outlook.forecast else ""] if outlook.text else []


def ahead(data: "Data", view: "View") -> Outlook:
    """Return the outlook of a recording; of a live one, that of its version some seconds ago."""
    known: Outlook
    if view.is_live:
        known = data.answers(view).lagging("forecast", lambda: forecast(view.recording), _OF_FORECASTS)
    else:
        known = data.derive(view, "outlook", lambda found: forecast_of(found, data.ask(view, "leaks")))
    return known
