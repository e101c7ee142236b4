"""What a page shows when there is nothing to show: why, and what to do."""

from typing import Any

from dash import dcc, html

from vramscope.units import format_bytes

from ..queries.read_progress import ReadProgress

POLL_MS = 250


def state(title: str, text: str, *steps: Any, tone: str = "quiet") -> html.Section:
    """A sentence that says what is so, one that says why, and what to do about it."""
    advice = [html.P(step, className="state-step") for step in steps]
    return html.Section(
        [html.H2(title), html.P(text), *advice], className=f"state state-{tone}", role="status"
    )


def command(text: str) -> html.Code:
    """Something to type."""
    return html.Code(text, className="command")


def no_runs(folder: str) -> html.Section:
    """The folder holds nothing that we can open."""
    return state(
        "No recordings yet",
        f"Nothing below {folder} is a run or a memory snapshot. This page looks again by itself.",
        ["Record a training script: ", command('with vramscope.record("traces/first"):')],
        ["Or try it without a script: ", command("vramscope demo")],
        ["Files that torch wrote open too: ", command("vramscope serve snapshot.pickle")],
    )


def nothing_recorded(live: bool) -> html.Section:
    """A run without a single event."""
    if live:
        return state(
            "Waiting for the first event",
            "The run has started; no memory has moved yet. This page follows by itself.",
        )
    return state(
        "Nothing was recorded",
        "This recording holds no allocator events.",
        ["Enter the recorder before the model is built, around the code that allocates: ",
         command("with vramscope.record():")],
        "A snapshot without a trace still shows what was live when it was taken, if it lists segments.",
    )  # fmt: skip


def counters_only(way: Any) -> html.Section:
    """A run whose allocator was sampled, not followed."""
    return state(
        "Counters, no events",
        'This run was recorded with mode="counters": levels at samples, but no single allocation.',
        ["What the samples say is in the ", way],
    )


def failure(message: str) -> html.Section:
    """Something that was asked for cannot be had."""
    return state(
        "This cannot be shown", message, html.A("Back to all runs", href="/", className="link"), tone="error"
    )


def working(title: str, is_reading: bool, read: ReadProgress | None = None) -> html.Section:
    """A page that takes its time: what happens; the page comes by itself."""
    poll = dcc.Interval(id="poll", interval=POLL_MS)
    said = html.Div(how_far(is_reading, read), id="how-far")
    return html.Section(
        [html.H2(f"{title} …"), said, html.Div(className="shimmer"), poll],
        className="working", role="status",
    )  # fmt: skip


def how_far(is_reading: bool, read: ReadProgress | None) -> Any:
    """What a page waits for, and how much of it is done."""
    if read is not None and read.n_bytes:
        text = f"Reading the file: {format_bytes(read.n_read)} of {format_bytes(read.n_bytes)}."
        if read.n_read >= read.n_bytes:
            text = f"All {format_bytes(read.n_bytes)} are read; ordering the events takes as long again."
        bar = html.Progress(value=str(read.n_read), max=str(read.n_bytes), **{"aria-label": "Read"})
        return [html.P(text), bar]
    if is_reading:
        return html.P("The recording is being opened: some seconds for every five million events.")
    return html.P("The events are being counted.")


def alarm(stopped: str, *, is_other: bool, is_altered: bool = False) -> Any:
    """Over a page whose run is not what it was; None where all is well."""
    if stopped:
        return html.Div(
            [html.Strong("Not recorded any more. "), f"The training may go on, but {stopped}"],
            className="banner", role="alert",
        )  # fmt: skip
    if is_other:
        text = (
            "Another run was recorded in the place of the one that this page began with; this is the new one."
        )
        return html.Div([html.Strong("Replaced. "), text], className="banner", role="alert")
    if is_altered:
        text = (
            "The files of this run were changed after it had ended. They were read again; reload the page to "
            "see everything that they hold now."
        )
        return html.Div([html.Strong("Changed. "), text], className="banner", role="alert")
    return None


def gone(why: str = "") -> html.Div:
    """The banner over a page whose run disappeared, or cannot be read any more, while it was open.

    Parameters
    ----------
    why
        What is wrong with the files; empty where there are none any more.
    """
    word = "Damaged. " if why else "Gone. "
    text = f"This run cannot be read any more: {why} " if why else "This run was moved or deleted. "
    shown = [html.Strong(word), text, "What you see is the last state that was read. "]
    return html.Div([*shown, html.A("All runs", href="/")], className="banner", role="alert")
