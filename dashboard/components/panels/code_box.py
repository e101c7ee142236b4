"""Any text as a button that shows a line of code and its stack in the inspector."""

from typing import Any

import numpy as np
from dash import html

from vramscope.model.stacks import Stacks


def to_code(shown: Any, stack: int, name: str = "") -> Any:
    """Return *shown* as a button that shows *stack* in the inspector; unchanged where *stack* is 0."""
    if stack <= 0:
        return shown
    title = f"Show the line of code{f' of {name}' if name else ''}"
    return html.Button(
        shown, type="button", className="to-code", title=title, **{"data-inspect": f"l{stack}"}
    )


def stack_of(stacks: Stacks, file: str, line: int) -> int:
    """Return a stack whose innermost frame is that line; 0 where none is."""
    at = np.flatnonzero(stacks.line == line)
    names = np.array([stacks.strings[i] == file for i in stacks.file[at].tolist()], "?")
    found = at[names] if len(at) else at
    return int(found[0]) if len(found) else 0
