"""One allocation in words: size, category, line of code, and when it was allocated and freed."""

from typing import Any

from vramscope.analysis.lines import NO_STACK
from vramscope.model.marks import Category
from vramscope.units import format_duration, format_name

from ...answers import folded, moment
from ...data import Data, View
from . import stack_table


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
        "place": stack_table.marked_place(code, int(code.place[stack]))[:120],
        "via": via[:80] if frame else "",
        "bytes": int(found.block_size[row]),
        "asked": int(found.size[row]),
        "category": _category(data, view, row),
        "born": "before the recording" if born < 0 else moment(data, view, born + 1).words,
        "freed": "" if freed < 0 else moment(data, view, min(freed + 1, len(view.recording.trace))).words,
        "lived": _lived(found, row, view),
        "stack": stack,
    }  # fmt: skip


def _unplaced(stack: int, born: int) -> str:
    if born < 0 and not stack:
        return "from before the recording"
    return stack_table.NO_FRAME if stack else NO_STACK


def _category(data: Data, view: View, row: int) -> str:
    known = data.ask(view, "categories")
    return format_name(Category(int(known.assigned.category[row])))


def _lived(found: Any, row: int, view: View) -> str:
    born, freed = int(found.alloc_event[row]), int(found.free_event[row])
    if born < 0 or freed < 0:
        return ""
    if view.recording.trace.has_clock:
        return format_duration(int(found.free_ns[row] - found.alloc_ns[row]))
    return f"{freed - born:,} events"
