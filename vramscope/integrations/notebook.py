"""The cell magic ``%%vramscope``, after ``%load_ext vramscope``: records a cell and shows what it used."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

from vramscope.errors import CaptureError, UsageError
from vramscope.model.recording import Run
from vramscope.recorder import record
from vramscope.units import format_bytes

_ROWS = 8


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; IPython calls this for ``%load_ext vramscope``."""

    def vramscope(line: str, cell: str) -> None:
        """Record the cell, and show its memory over time, the lines at the peak, and the findings.

        ``%%vramscope [DIRECTORY]``; without a directory it goes to ``traces/cell-<time>``.
        """
        _record_cell(shell, line, cell)

    shell.register_magic_function(vramscope, "cell", "vramscope")


def _record_cell(shell: Any, line: str, cell: str) -> None:
    words = shlex.split(line)
    if len(words) > 1 or line.startswith("-"):
        raise UsageError("%%vramscope [DIRECTORY]: one directory at most")
    directory = words[0] if words else f"traces/cell-{datetime.now():%Y%m%d-%H%M%S-%f}"  # noqa: DTZ005
    recorder = record(directory, quiet=True)
    try:
        recorder.__enter__()
    except CaptureError as why:
        raise UsageError(f"this cell is not recorded: {why}") from None
    error: BaseException | None = None
    try:
        result = shell.run_cell(cell)
        # The shell has shown it; the recording has to know of it.
        error = result.error_before_exec or result.error_in_exec
    finally:
        recorder.__exit__(type(error) if error else None, error, None)
    from IPython.display import HTML, display

    display(HTML(page(recorder.load())))


def page(run: Run) -> str:
    """Return the figure, the table of lines at the peak and the findings of a run as HTML without scripts."""
    parts = []
    for recording in run.recordings:
        summary = recording.summary()
        rows = [
            (format_bytes(row.n_bytes), f"{row.frames[0].file}:{row.frames[0].line}" if row.frames else "–")
            for row in summary.live[:_ROWS]
        ]
        parts += [recording._repr_html_(), _table(("at the peak", "allocated at"), rows)]
        parts += [f"<div>{escape(f'{found.severity}: {found.claim}')}</div>" for found in summary.findings]
    return "".join([*parts, f"<div><code>vramscope serve {escape(shlex.quote(run.path))}</code></div>"])


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>" if rows else ""
