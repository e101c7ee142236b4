"""Messages of a page that has nothing to show yet or cannot: the reason, and what to do."""

from typing import Any

from dash import dcc, html

from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.model.codes import NoteCode
from vramscope.units import format_bytes

from ..address import Address
from ..data import View
from ..queries.read_progress import ReadProgress

POLL_MS = 250
_SAMPLED = ("allocated", "reserved", "device_used")
"""Levels of which the waterfall shows any."""


def state(title: str, text: str, *steps: Any, tone: str = "quiet", waits: bool = False) -> html.Section:
    """Return a message: a title, the reason, and what to do about it.

    Each of *steps* is a paragraph; *tone* is ``quiet`` or ``error``. A page that *waits* is laid out again
    when the run has grown.
    """
    advice = [html.P(step, className="state-step") for step in steps]
    more = {"data-waits": "yes"} if waits else {}
    return html.Section(
        [html.H2(title), html.P(text), *advice], className=f"state state-{tone}", role="status", **more
    )


def command(text: str) -> html.Code:
    """Return *text* as a command to type."""
    return html.Code(text, className="command")


def no_runs(folder: str) -> html.Section:
    """Return the message for a folder without any run or snapshot."""
    return state(
        "No recordings yet",
        f"Nothing below {folder} is a run or a memory snapshot. This page checks again by itself.",
        ["Record a training script: ", command('with vramscope.record("traces/first"):')],
        ["Or try it without a script: ", command("vramscope demo")],
        ["Files that torch wrote open too: ", command("vramscope serve snapshot.pickle")],
    )


def nothing_recorded(live: bool, view: View | None = None, lacks: str = "who allocated") -> html.Section:
    """Return the message for a run without events; of *view*, the highest totals that are known."""
    if live:
        return state(
            "Waiting for the first event",
            "The run has started; nothing has been allocated yet. This page updates by itself.",
            waits=True,
        )
    if view and has_no_device(view):
        on_cpu = ["To see a training's memory without a GPU: ", command('record(device="simulated")')]
        return state(
            "No memory was recorded", "There was no CUDA device, so steps alone were recorded.", on_cpu
        )
    most = most_known(view) if view else ""
    fall = html.A("Waterfall", href=Address("/waterfall", *view.here).url, className="link") if view else ""
    sampled = [getattr(view.recording.counters, f"{name}_bytes") for name in _SAMPLED] if view else []
    has_samples = any((column >= 0).any() for column in sampled)
    return state(
        most or "No single allocation is in it",
        f"Totals at moments are in it, and no single allocation: {lacks} is not known."
        if most or has_samples
        else "Nothing was allocated on this device while it was recorded.",
        *([["The totals are shown in the ", fall, "."]] if has_samples else []),
        [f"To see {lacks}: ", *to_record(view)],
    )


def has_no_device(view: View) -> bool:
    """Return whether steps alone were recorded, as torch had no CUDA device."""
    return NoteCode.NO_DEVICE in [note.code for note in view.recording.notes]


def most_known(view: View) -> str:
    """Return the highest totals of a run without events; '' where none is known."""
    known = sampled_peaks(view.recording)
    levels = (("allocated", known.allocated_bytes), ("reserved", known.reserved_bytes))
    most = ", ".join(f"{format_bytes(n_bytes)} {word}" for word, n_bytes in levels if n_bytes >= 0)
    return most and f"Peak {'' if known.is_exact else 'at least '}{most}"


def to_record(view: View | None) -> tuple[Any, ...]:
    """Return how a program is recorded with its lines; one recorded by counters at nearly their cost."""
    codes = [note.code for note in view.recording.notes] if view else []
    return _TO_RECORD_SOME if NoteCode.COUNTERS_ONLY in codes else _TO_RECORD


_TO_RECORD = (
    command("vramscope run SCRIPT"), " or ", command("with vramscope.record():"), " before the model is built"
)  # fmt: skip


_TO_RECORD_SOME = command('record(every="auto")'), " records some steps with lines, and counts the others"


def without_answer(title: str, why: str) -> html.Section:
    """Return the message for a question that a source says too little for: nothing is wrong with the run."""
    return state(title, f"{why[:1].upper()}{why[1:]}.", ["With a recording it is known: ", *_TO_RECORD])


def failure(message: str, title: str = "") -> html.Section:
    """Return the message for a page that cannot be shown."""
    back = html.A("Back to all runs", href="/", target="_self", className="link")
    return state(title or "This cannot be shown", message, back, tone="error")


def working(title: str, is_reading: bool, read: ReadProgress | None = None) -> html.Section:
    """Return what is shown while a page takes long; the page replaces it by itself.

    *read* is how much of the file is read; None where unknown.
    """
    poll = dcc.Interval(id="poll", interval=POLL_MS)
    state_of_work = html.Div(how_far(is_reading, read), id="how-far")
    return html.Section(
        [html.H2(f"{title} …"), state_of_work, html.Div(className="shimmer"), poll],
        className="working", role="status",
    )  # fmt: skip


def how_far(is_reading: bool, read: ReadProgress | None) -> Any:
    """Return what a page waits for, and how much of it is done."""
    if read is not None and read.n_bytes:
        text = f"Reading the file: {format_bytes(read.n_read)} of {format_bytes(read.n_bytes)}."
        if read.n_read >= read.n_bytes:
            text = f"All {format_bytes(read.n_bytes)} are read; sorting the events takes about as long again."
        bar = html.Progress(value=str(read.n_read), max=str(read.n_bytes), **{"aria-label": "Read"})
        return [html.P(text), bar]
    if is_reading:
        return html.P("Opening the recording: some seconds for every five million events.")
    return html.P("Counting the events.")


def alarm(stopped: str, *, is_other: bool, is_altered: bool = False) -> Any:
    """Return the banner over a page whose run is not what it was; None where there is nothing to report.

    *stopped* is why the recording stopped before the training, '' where it did not; *is_other* is whether
    another run replaced the one that the page began with, *is_altered* whether files changed after the run's
    end.
    """
    if stopped:
        return _banner("The recording has stopped", f"The training may go on, but {stopped}")
    if is_other:
        text = "Another run was recorded at the path of the one that this page began with; this is the new"
        return _banner("Replaced", f"{text} one.")
    if is_altered:
        text = "The files of this run were changed after it had ended. They were read again; reload the page"
        return _banner("Changed", f"{text} to see everything that they hold now.")
    return None


def _banner(word: str, *parts: Any) -> html.Div:
    return html.Div([html.Strong(f"{word}. "), *parts], className="banner", role="alert")


def gone(why: str = "") -> html.Div:
    """Return the banner over an open page whose run was deleted, or can no longer be read.

    *why* is what is wrong with the files; empty where they no longer exist.
    """
    text = f"This run can no longer be read: {why} " if why else "This run was moved or deleted. "
    link = html.A("All runs", href="/", target="_self")
    return _banner("Damaged" if why else "Gone", text, "What you see is the last state that was read. ", link)


def copyable(text: str) -> Any:
    """Return *text* as a line of code; the script ``copy.js`` serves the button."""
    button = html.Button("Copy", type="button", className="copy", title="Copy the command")
    return html.Div(
        [html.Pre(html.Code(html.Bdi(text)), className="copy-text"), button], className="copyable"
    )
