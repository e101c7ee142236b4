"""The URL of a page: page, run, rank, device, instant, zoom, selection and search.

A URL is untrusted input: values that are not of the expected form are dropped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_RUN = re.compile(r"[A-Za-z0-9._-]{1,120}", re.ASCII)
_WORD = re.compile(r"[a-z0-9_-]{1,40}", re.ASCII)
MAX_SEARCH = 200
_SELECTED = re.compile(r"[bflp][0-9]{1,17}|i", re.ASCII)
_NUMBERS = ("rank", "device", "restart", "t0", "t1", "b0", "b1", "at", "root")
UNZOOMED: dict[str, Any] = {"t0": None, "t1": None, "b0": None, "b1": None}
"""Changes to an address that remove the zoom."""


@dataclass(frozen=True, slots=True)
class Address:
    """One view of the dashboard; None and '' mean the default."""

    path: str = "/"
    run: str = ""
    """Id of a run, never a path."""
    rank: int | None = None
    device: int | None = None
    restart: int | None = None
    """Which of several runs of the rank in one file, from 0."""
    t0: int | None = None
    """Left edge of the zoom: ns since the recording began, or events."""
    t1: int | None = None
    b0: int | None = None
    """Lower edge of the zoom in bytes, where a page zooms in both directions."""
    b1: int | None = None
    at: int | None = None
    """The instant: the number of events before it."""
    axis: str = ""
    """``events``, or '' for time."""
    by: str = ""
    """What a page colors, groups or compares by; each page has words of its own."""
    group: str = ""
    """What a row of the table of allocations is."""
    q: str = ""
    """The text of the search box."""
    other: str = ""
    """Id of the second run on the page "Compare"."""
    sel: str = ""
    """What the inspector shows: a letter and a number, see ``inspector``."""
    root: int | None = None
    """The call that the picture of calls begins with: a node of its tree."""

    def go(self, **changes: Any) -> "Address":
        """Return this address with *changes*."""
        return replace(self, **changes)

    @property
    def url(self) -> str:
        """The address as a link; values that are the default are left out."""
        stored = self.stored
        values = {name: stored[name] for name in stored if name != "path" and stored[name] not in (None, "")}
        return f"{self.path}?{urlencode(values)}" if values else self.path

    @property
    def stored(self) -> dict[str, Any]:
        """The address as JSON for the browser to send back; :func:`restore` reads it."""
        # dataclasses.asdict copies deeply, which takes ten times as long: a list of 500 runs has 1,000 links.
        return {name: getattr(self, name) for name in self.__slots__}


def parse(pathname: str | None, search: str | None) -> Address:
    """Return the address that a browser shows."""
    try:
        values = dict(parse_qsl((search or "").lstrip("?"), max_num_fields=20))
    except ValueError:
        values = {}
    return restore(values | {"path": pathname})


def restore(sent: Mapping[str, Any] | None) -> Address:
    """Return the address in what a client sent; values of another form are dropped."""
    words = {key: str(value) for key, value in (sent or {}).items() if value is not None}
    path = words.get("path", "/")
    run = words.get("run", "")
    return Address(
        path=path if re.fullmatch(r"/[a-z0-9/_-]{0,80}", path) else "/",
        run=run if _RUN.fullmatch(run) else "",
        axis="events" if words.get("axis") == "events" else "",
        by=words.get("by", "") if _WORD.fullmatch(words.get("by", "")) else "",
        group=words.get("group", "") if _WORD.fullmatch(words.get("group", "")) else "",
        q=words.get("q", "")[:MAX_SEARCH],
        other=words.get("other", "") if _RUN.fullmatch(words.get("other", "")) else "",
        sel=words.get("sel", "") if _SELECTED.fullmatch(words.get("sel", "")) else "",
        **{name: int(words[name]) for name in _NUMBERS if _INTEGER.fullmatch(words.get(name, ""))},
    )
