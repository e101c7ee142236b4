"""What was reserved: why it rose, by whose lines, each call of the driver, and the blocks that pin it."""

from typing import Any

import numpy as np
from dash import html

from vramscope.analysis.driver_calls import DriverCalls, jump_at, jump_words, largest_jump, reserved_by
from vramscope.analysis.folding import Folded
from vramscope.analysis.lines import NO_STACK
from vramscope.analysis.pins import pins_of
from vramscope.model.marks import Phase
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_count

from ...answers import ask_allowing_stale, folded, moment, state_of
from ...data import Data, View
from .. import panel as panels
from ..prose import on_demand
from .found_table import lasted
from .stack_table import columns_of, grid, marked_place, no_rows

MAX_ROWS = 500
_WORD = {Action.SEGMENT_ALLOC: "cudaMalloc", Action.SEGMENT_FREE: "cudaFree",
         Action.SEGMENT_MAP: "map", Action.SEGMENT_UNMAP: "unmap"}  # fmt: skip
MAX_PINS = 200
_JUMP = ((html.H4, ""), (html.P, "support"), (html.P, "dim"))


def layout(data: Data, view: View, at: int | None) -> list[Any]:
    """Return why memory was reserved and by whom; nothing where the driver was never called."""
    calls: DriverCalls = ask_allowing_stale(data, view, "driver_calls")
    if not len(calls):
        return []
    by_line, by_call = rows(data, view)
    lines = grid("fr-lines", by_line, columns_of("driver_lines"), no_rows("Nothing was reserved."))
    every = grid("fr-calls", by_call, columns_of("driver_calls"), no_rows("The driver was not called."))
    # Their script comes after the page, which keeps their room until then.
    lines, every = (html.Div(t, className="room", style={"--rows": len(t.rowData)}) for t in (lines, every))
    words = f"the largest {MAX_ROWS} of {len(calls):,}" if len(calls) > MAX_ROWS else f"{len(calls):,}"
    jump = [
        tag(text, className=look, **{"data-from": "fr", "data-field": name})
        for (name, text), (tag, look) in zip(jump_fields(data, view, at).items(), _JUMP, strict=True)
    ]
    calls_below = html.Div(on_demand(f"Calls of the driver: {words}", every), className="folded")
    why = html.Div(jump, id="fr-jump", className="jump")
    return [panels.panel("What was reserved, by whom", why, lines, calls_below)]


def rows(data: Data, view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of both tables."""
    calls: DriverCalls = ask_allowing_stale(data, view, "driver_calls")

    def made(_: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return _lines(data, view, calls), _calls(data, view, calls)

    # The calls of a run that grows may lag behind its version.
    return data.derive(view, ("reserved by", len(calls), int(calls.n_bytes.sum())), made)


def jump_fields(data: Data, view: View, at: int | None) -> dict[str, str]:
    """Return why memory was reserved at the last call before *at*; None is the largest of later steps."""
    calls: DriverCalls = ask_allowing_stale(data, view, "driver_calls")
    row = largest_jump(calls, at)
    if row < 0:
        return {"jump": "Nothing was reserved up to here", "why": "", "step": ""}
    event = int(calls.event[row])
    found = data.derive(view, ("jump", event), lambda r: jump_at(r, calls, row, state_of(data, view, event)))
    first = calls.step[calls.step >= 0].min(initial=calls.step[row])
    after = f" after step {int(view.recording.steps.index[first])}" if first < calls.step[row] else ""
    which = f"The largest jump{after}" if at is None else "The last jump up to here"
    return {
        "jump": f"{which}: {moment(data, view, event + 1).words}",
        "why": jump_words(folded(data, view), found),
        "step": _step(view, calls, row),
    }


def _step(view: View, calls: DriverCalls, row: int) -> str:
    """Return what the whole step reserved."""
    step = int(calls.step[row])
    mine = calls.rows(calls.step == step)
    came, n_calls = mine.gains, int(mine.gains.n_calls.sum())
    went = int(mine.n_bytes.sum() - came.n_bytes.sum())
    name = (
        f"Step {int(view.recording.steps.index[step])}"
        if step >= 0
        else "Before and between steps the program"
    )
    back = f" and gave back {format_bytes(went)}" if went else ""
    n_retries, came_bytes = int(mine.is_retry.sum()), format_bytes(int(came.n_bytes.sum()))
    retried = f"; cache released {n_retries:,} × for a request" if n_retries else ""
    return f"{name} reserved {came_bytes} in {format_count(n_calls, 'call')}{back}{retried}."


def _lines(data: Data, view: View, calls: DriverCalls) -> list[dict[str, Any]]:
    found, code = reserved_by(view.recording.stacks, calls), folded(data, view)
    whole = max(int(found.n_bytes.sum()), 1)
    return [
        _named(code, int(found.stack_id[i])) | {
            "id": str(i), "size": int(found.n_bytes[i]), "share": int(found.n_bytes[i]) / whole,
            "count": int(found.n_calls[i]), "steps": _steps(view, calls, found, i),
        }
        for i in range(min(len(found), MAX_ROWS))
    ]  # fmt: skip


def _steps(view: View, calls: DriverCalls, found: Any, i: int) -> str:
    """Return the first and last step in which a line had memory reserved."""
    rows = np.searchsorted(calls.event, (found.first_event[i], found.last_event[i]))
    first, last = (int(each) for each in calls.step[rows])
    names = [f"{int(view.recording.steps.index[each])}" if each >= 0 else "" for each in (first, last)]
    if not any(names):
        return "outside of steps"
    if all(names):
        return f"step {names[0]}" if names[0] == names[1] else f"steps {names[0]} to {names[1]}"
    return f"from step {names[0]} on" if names[0] else f"up to step {names[1]}"


def _calls(data: Data, view: View, calls: DriverCalls) -> list[dict[str, Any]]:
    rows = np.arange(len(calls))
    if len(rows) > MAX_ROWS:
        rows = np.sort(np.argpartition(-calls.n_bytes, MAX_ROWS)[:MAX_ROWS])
    code = folded(data, view)
    return [_call(data, view, code, calls, row) for row in rows.tolist()]


def _call(data: Data, view: View, code: Any, calls: DriverCalls, row: int) -> dict[str, Any]:
    event, asked = int(calls.event[row]), int(calls.requested_bytes[row])
    count = f"{int(calls.n_calls[row])} × " if calls.n_calls[row] > 1 else ""
    word = "retry" if calls.is_retry[row] else _WORD[Action(int(calls.kind[row]))]
    return _named(code, int(calls.stack_id[row])) | {
        "id": str(event), "at": event, "when": moment(data, view, event + 1).words, "call": count + word,
        "size": int(calls.n_bytes[row]), "asked": asked if asked >= 0 else None,
    }  # fmt: skip


def _named(code: Any, stack: int) -> dict[str, Any]:
    return {
        "where": function_of(code, stack)[:160],
        "place": marked_place(code, int(code.place[stack])),
        "stack": stack,
    }


def panel(data: Data, view: View, at: int, state: Snapshot) -> html.Section:
    """Return the table with its heading; a selected row opens the line of code."""
    heading, found = pin_rows(data, view, at, state)
    shown = grid("fr-pins", found, columns_of("pins"), no_rows("No block pins a mostly free segment here."))
    shown.className = "table short"
    title = html.H3(heading, id="fr-pins-heading", **{"data-from": "fr", "data-field": "pins"})
    return panels.panel(title, shown, label="What pins segments")


def pin_rows(data: Data, view: View, at: int, state: Snapshot) -> tuple[str, list[dict[str, Any]]]:
    """Return heading and rows for the instant *at*, whose blocks are *state*."""
    found = data.derive(
        view, ("pins", at), lambda recording: pins_of(recording, state, data.ask(view, "lifetimes"))
    )
    if not len(found):
        return "What pins mostly free segments", []
    n_segments = len(np.unique(found.segment))
    many = f"{n_segments:,} segments" if n_segments > 1 else "One segment"
    verb, blocks = "are" if n_segments > 1 else "is", "block" if len(found) == 1 else "blocks"
    heading = f"{many} more than half free {verb} kept by {len(found):,} {blocks}"
    return heading, [_pin(data, view, found, i) for i in range(min(len(found), MAX_PINS))]


def function_of(code: Folded, stack: int) -> str:
    """Return the function that allocated, or the library's, or words for a stack that is not known."""
    frame = code.frame(stack)
    return frame.function if frame else code.strings[int(code.via[stack])] or NO_STACK


def _pin(data: Data, view: View, found: Any, i: int) -> dict[str, Any]:
    code = folded(data, view)
    stack = int(found.stack_id[i])
    phase, step = Phase(int(found.phase[i])), int(found.step[i])
    number = int(view.recording.steps.index[step]) if step >= 0 else -1
    words = [f"step {number}" if step >= 0 else "", phase.name.lower() if phase != Phase.OTHER else ""]
    origin = " · ".join(word for word in words if word) or ("before" if found.alloc_event[i] < 0 else "")
    age = lasted(view, int(found.age_ns[i]), int(found.age_events[i]))
    return {
        "id": str(i), "where": function_of(code, stack)[:160],
        "place": marked_place(code, int(code.place[stack])), "kept": int(found.kept_bytes[i]),
        "size": int(found.block_size[i]), "segment": int(found.segment_size[i]),
        "others": int(found.n_blocks[i]) - 1, "age": age, "from": origin, "stack": stack,
    }  # fmt: skip
