"""The allocations that a search found: each, or summed up by line, module or category; and one in words."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html
from numpy.typing import NDArray

from vramscope.analysis.allocations import Field, Term, line_term
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.timeline import named_instant
from vramscope.export.csv import LIKE_A_FORMULA
from vramscope.model.marks import Category
from vramscope.units import format_bytes, format_count, format_duration, format_name

from ...answers import folded, moment, owners, totals
from ...data import Data, View
from ...figures.drawing.series import has_clock
from .stack_table import NO_FRAME, columns_of, marked_place

MAX_ROWS = 500
GROUPS = {"": "Blocks", "line": "Lines", "module": "Modules", "category": "Categories"}
"""What a row of the table is, and the word on its button."""
_NO_MODULE = "no module"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The allocations that a search found."""

    rows: NDArray[Any]
    """Rows of the lifetimes, ascending."""
    n_bytes: int
    at: int | None
    """The instant that all of them are live at; None where the search names none."""


def found_of(data: Data, view: View, terms: tuple[Term, ...], hits: NDArray[Any] | None) -> Found:
    """Return what a search with these *terms* found; *hits* is None where it has none."""
    lives = data.ask(view, "lifetimes")
    rows = np.arange(len(lives)) if hits is None else np.flatnonzero(hits)
    live = [each.value for each in terms if each.field is Field.LIVE and not each.is_excluded]
    at = named_instant(view.recording, live[0]) if live else None
    return Found(rows, int(lives.block_size[rows].sum()), at)


def heading(data: Data, view: View, found: Found, group: str, *, is_search: bool) -> str:
    """Return what the table lists; bytes only of a search, because all blocks never lived at once."""
    n_found = len(found.rows)
    some = f"Largest {MAX_ROWS} of " if n_found > MAX_ROWS and not group else ""
    live = "" if found.at is None else f" live at {moment(data, view, found.at).words}"
    words = f"found{live}, {format_bytes(found.n_bytes)}" if is_search else "allocations"
    return f"{some}{n_found:,} {words}"


def columns(group: str, *, is_live: bool) -> list[dict[str, Any]]:
    """Return the columns of the table."""
    where, *others = columns_of("groups" if group else "blocks")
    if group:
        name = GROUPS[group].removesuffix("s") if group != "category" else "Category"
        return [where | {"headerName": name}, *others]
    life = {"headerName": "Age", "headerTooltip": "Since its allocation, at that instant"} if is_live else {}
    return [where, *others[:-1], others[-1] | life]


def rows(data: Data, view: View, found: Found, group: str) -> list[dict[str, Any]]:
    """Return up to MAX_ROWS rows, the largest first."""
    if group:
        return _sums(data, view, found, group)
    sizes, largest = data.ask(view, "lifetimes").block_size, found.rows
    if len(largest) > MAX_ROWS:
        largest = largest[np.argpartition(-sizes[largest], MAX_ROWS)[:MAX_ROWS]]
    largest = largest[np.argsort(-sizes[largest], kind="stable")]
    paths = _modules(data, view, largest)
    return [
        _block(data, view, row, path, found.at) for row, path in zip(largest.tolist(), paths, strict=True)
    ]


def _modules(data: Data, view: View, which: NDArray[Any]) -> list[str]:
    """Return the module of each row; '' for all of a long live run, whose modules would take seconds."""
    if view.is_live and len(view.recording.trace) > data.pace.events_at_once:
        return [""] * len(which)
    known = owners(data, view)
    return [known.paths[each] for each in known.module[which].tolist()]


def _block(data: Data, view: View, row: int, path: str, at: int | None) -> dict[str, Any]:
    texts = words(data, view, row)
    life = "not freed" if not texts["freed"] else texts["lived"] or "–"
    return {
        "id": str(row), "block": row, "where": texts["where"], "place": texts["place"], "module": path[:160],
        "size": texts["bytes"], "kind": texts["category"], "born": texts["born"],
        "life": life if at is None else _age(data, view, row, at),
    }  # fmt: skip


def _age(data: Data, view: View, row: int, at: int) -> str:
    born = int(data.ask(view, "lifetimes").alloc_event[row])
    if born < 0:
        return "–"
    known = totals(data, view).time_ns
    return lasted(view, max(int(known[at]) - int(known[born + 1]), 0), at - born)


def _sums(data: Data, view: View, found: Found, group: str) -> list[dict[str, Any]]:
    """Return the sums of each line, module or category, with the term that finds its blocks."""
    keys, named = _keys(data, view, found.rows, group)
    sizes = data.ask(view, "lifetimes").block_size[found.rows]
    known, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    n_bytes, largest = np.zeros(len(known), "i8"), np.zeros(len(known), "i8")
    np.add.at(n_bytes, inverse, sizes)
    np.maximum.at(largest, inverse, sizes)
    count = np.bincount(inverse, minlength=len(known))
    order = np.argsort(-n_bytes, kind="stable")[:MAX_ROWS]
    return [
        named(int(first[i])) | {
            "id": f"{group}{int(known[i])}", "size": int(n_bytes[i]), "count": int(count[i]),
            "share": int(n_bytes[i]) / max(found.n_bytes, 1), "largest": int(largest[i]),
        }
        for i in order.tolist()
    ]  # fmt: skip


def _keys(data: Data, view: View, which: NDArray[Any], group: str) -> tuple[NDArray[Any], Any]:
    """Return a number for each row's group, and what names the group of the row at a position."""
    if group == "category":
        category = data.ask(view, "categories").assigned.category[which]
        return category, lambda i: _category(int(category[i]))
    if group == "module":
        known = owners(data, view)
        module = known.module[which]
        return module, lambda i: _module(known.paths[int(module[i])])
    code, stack = folded(data, view), data.ask(view, "lifetimes").stack_id[which]
    node = code.place[stack]
    return code.line_of_stack[stack], lambda i: _line(code, int(node[i]), int(stack[i]))


def _category(which: int) -> dict[str, Any]:
    name = format_name(Category(which))
    return {
        "where": name,
        "swatch": Category(which).name.lower(),
        "term": f"category:{name.replace(' ', '-')}",
    }


def _module(path: str) -> dict[str, Any]:
    if not path:
        return {"where": _NO_MODULE, "term": "-module:*"}
    return {"where": path[:200], "term": f'module:"{path}"'}


def _line(code: Any, node: int, stack: int) -> dict[str, Any]:
    if not node:
        return {"where": NO_FRAME if stack else NO_STACK, "stack": stack}
    frame = code.stacks.frame(node)
    shown = {"where": frame.function[:200], "place": marked_place(code, node)}
    term = line_term(frame)
    return shown | ({"term": f"line:{term}"} if term else {"stack": stack})


def buttons(group: str) -> Any:
    """Return the choice of what a row is; the script ``found.js`` serves it."""
    shown = [
        html.Button(word, type="button", className="here" if name == group else "",
                    **{"data-group": name, "aria-pressed": str(name == group).lower()})
        for name, word in GROUPS.items()
    ]  # fmt: skip
    return html.Div(shown, className="segments", role="group", **{"aria-label": "Rows"})


def live_button(text: str) -> Any:
    """Return the button that narrows the search to what is live at the chosen instant."""
    is_on = re.search(r"(^|\s)live:", text) is not None
    return html.Button(
        "Live at the instant", id="al-live", type="button", className="toggle here" if is_on else "toggle",
        title="Only what is live at the instant that is chosen in the chart; else at the peak",
        **{"aria-pressed": str(is_on).lower()},
    )  # fmt: skip


_HEAD = ("function", "file", "line", "module", "category", "block_bytes", "requested_bytes",
         "allocated_event", "freed_event", "address", "stream")  # fmt: skip


def as_csv(data: Data, view: View, found: Found) -> Iterator[str]:
    """Yield a CSV of every allocation found, in pieces: exact numbers, and texts that no spreadsheet runs."""
    lives, code = data.ask(view, "lifetimes"), folded(data, view)
    category = data.ask(view, "categories").assigned.category
    known = owners(data, view)
    names: dict[int, tuple[str, str, Any]] = {}
    paths = [_safe(path) for path in known.paths]
    buffer = io.StringIO()
    write = csv.writer(buffer, lineterminator="\n")
    write.writerow(_HEAD)
    for part in np.array_split(found.rows, max(len(found.rows) // 4096, 1)):
        for row in part.tolist():
            stack = int(lives.stack_id[row])
            if stack not in names:
                frame = code.frame(stack)
                names[stack] = (
                    (_safe(frame.function), _safe(frame.file), frame.line) if frame else ("", "", "")
                )
            write.writerow((
                *names[stack], paths[known.module[row]], format_name(Category(int(category[row]))),
                int(lives.block_size[row]), int(lives.size[row]), int(lives.alloc_event[row]),
                int(lives.free_event[row]), f"{int(lives.address[row]):#x}", int(lives.stream[row]),
            ))  # fmt: skip
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def _safe(text: str) -> str:
    return f"'{text}" if re.match(LIKE_A_FORMULA, text) else text


def words(data: Data, view: View, row: int) -> dict[str, Any]:
    """Return short texts about one row of the lifetimes; under 1 kB, because every hover fetches them."""
    found = data.ask(view, "lifetimes")
    stack = int(found.stack_id[row])
    code = folded(data, view)
    frame = code.frame(stack)
    via = code.strings[int(code.via[stack])]
    born, freed = int(found.alloc_event[row]), int(found.free_event[row])
    return {
        "id": row,
        "where": frame.function[:160] if frame else (via[:160] or _unplaced(stack, born)),
        "place": marked_place(code, int(code.place[stack])),
        "via": via[:80] if frame else "",
        "bytes": int(found.block_size[row]),
        "asked": int(found.size[row]),
        "category": format_name(Category(int(data.ask(view, "categories").assigned.category[row]))),
        "born": "before the recording" if born < 0 else moment(data, view, born + 1).words,
        "freed": "" if freed < 0 else moment(data, view, min(freed + 1, len(view.recording.trace))).words,
        "lived": _lived(found, row, view),
        "stack": stack,
    }  # fmt: skip


def _unplaced(stack: int, born: int) -> str:
    if born < 0 and not stack:
        return "from before the recording"
    return NO_FRAME if stack else NO_STACK


def _lived(found: Any, row: int, view: View) -> str:
    born, freed = int(found.alloc_event[row]), int(found.free_event[row])
    if born < 0 or freed < 0:
        return ""
    return lasted(view, int(found.free_ns[row] - found.alloc_ns[row]), freed - born)


def lasted(view: View, n_ns: int, n_events: int) -> str:
    """Return how long a block lived: events where the source has no clock."""
    return format_duration(n_ns) if has_clock(view.recording) else format_count(n_events, "event")
