"""The pages of the dashboard, a file each with ``PAGE = Page(...)``. A new file is a new menu entry."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from vramscope import registry

from ..address import Address
from ..answers import findings
from ..data import Data, View


@dataclass(frozen=True, slots=True)
class Context:
    """The recordings and the address that a page is laid out for."""

    data: Data
    address: Address


class Behind(NamedTuple):
    """What the menu says of a page before it is opened."""

    n_shown: int = 0
    """Number of things that the page shows, beside its name; 0 for none."""
    nothing: str = ""
    """Why the page has nothing to show of this run; its entry is dimmed, and says so on hover."""
    is_offered: bool = True
    """Whether the menu has the page at all."""


class InstantParts(NamedTuple):
    """The parts of a page that show one instant; no callback changes them."""

    content: Mapping[str, list[Any]]
    """Components of HTML by the id of the element that has them."""
    props: Mapping[str, Mapping[str, Any]]
    """Properties of tables and stores by id."""
    attributes: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Further attributes of elements by id."""


class Instants(NamedTuple):
    """How a page follows the chosen instant (``components.instant_parts``)."""

    shown: Callable[[Data, View, Address], int]
    """The instant that the page shows at an address."""
    parts: Callable[[Data, View, int, Address], InstantParts]
    """Its parts at an instant."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: one question about a run, or about all runs."""

    name: str
    """Prefix of the ids of its components."""
    title: str
    order: int
    path: str
    """Path in the URL, such as ``/overview``; lower case."""
    layout: Callable[[Context], Any]
    """Returns its components; a VramscopeError that it raises is shown in their place."""
    register: Callable[[Any, Data], None]
    """Registers its callbacks by ``@app.callback``: nothing global, so that several apps do not mix."""
    about_run: bool = True
    """Whether it needs a run; if so, the menu has it once a run is chosen."""
    reads_events: bool = True
    """Whether it needs the run's events; if not, the run is not opened for it."""
    has_timeline: bool = False
    """Whether the page lays out the timeline itself; else the shell puts it above as a strip."""
    instant_store: str = ""
    """Id of the store that gets an instant chosen on the strip; '' where none needs it."""
    instants: Instants | None = None
    """How the page follows the chosen instant; None where it does not, or by callbacks of its own."""
    behind: Callable[[Data, View], Behind] | None = None
    """What lies behind its entry in the menu, from what is known of the run without an analysis."""


def counting(*kinds: str, needs_events: bool = True) -> Callable[[Data, View], Behind]:
    """Return what counts the findings of these kinds, once they are known: no page waits for its menu."""

    def behind(data: Data, view: View) -> Behind:
        known = view.recording
        has_any = len(known.trace) or (not needs_events and len(known.counters) and len(known.steps))
        if not view.is_live and not has_any:
            return Behind(nothing="No single allocation was recorded")
        is_known = kinds and (view.is_live or data.is_open(view.run_id, (view.key, "findings")))
        found = findings(data, view).findings if is_known else []
        return Behind(sum(each.kind in kinds for each in found))

    return behind


def pages() -> list[Page]:
    """Return every page, in the order of the menu."""
    return sorted(registry.parts(sys.modules[__name__], Page).values(), key=lambda page: page.order)
