"""The rooms of the dashboard, one a file: ``PAGE = Page(...)``. A new file is a new entry in the menu."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramscope import registry

from ..address import Address
from ..data import Data


@dataclass(frozen=True, slots=True)
class Context:
    """What a page is laid out for."""

    data: Data
    address: Address


@dataclass(frozen=True, slots=True)
class Page:
    """One room: a question about a run, or about all of them."""

    name: str
    """Prefix of the ids of its components."""
    title: str
    order: int
    path: str
    """``/overview``; lower case."""
    layout: Callable[[Context], Any]
    """Its components; may raise a VramscopeError, which is shown in its place."""
    register: Callable[[Any, Data], None]
    """Its callbacks, put on the app by ``@app.callback``: nothing global, so that apps do not mix."""
    about_run: bool = True
    """Whether it needs a run; if so it is in the menu once one is chosen."""
    icon: str = ""
    """Path data of a 16 × 16 stroke icon."""


def pages() -> list[Page]:
    """Every page, in order."""
    return sorted(registry.parts(sys.modules[__name__], Page).values(), key=lambda page: page.order)
