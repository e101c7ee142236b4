"""The header of a page: the run, its source, device and state, and the choice of its recordings."""

from datetime import datetime, timezone
from typing import Any

from dash import dcc, html

from vramscope.model.recording import Outcome, Recording
from vramscope.units import format_bytes

from ..address import UNZOOMED, Address
from ..data import Data, View
from . import report_link
from .definitions import DEFINITION, explained

SOURCE = {"simulated": "simulated", "predicted": "predicted", "cuda": "cuda", "snapshot": "file"}
OUTCOME = {
    Outcome.RUNNING: "running",
    Outcome.FINISHED: "ended",
    Outcome.FAILED: "failed",
    Outcome.DIED: "died",
    Outcome.FILE: "file",
}


def source_badge(source: str) -> Any:
    """Return the badge that names the source; a simulated or predicted device always shows one."""
    word = SOURCE.get(source, source)
    badge = html.Span(word, className=f"badge badge-{SOURCE.get(source, 'other')}", tabIndex="0")
    return explained(badge, DEFINITION.get(word, f"Recorded by {word}."))


def outcome_dot(outcome: Outcome, stalled_s: int = 0) -> html.Span:
    """Return the state of a run as a word with a dot, never as a color alone.

    Parameters
    ----------
    outcome
        How the run ended, or that it is running.
    stalled_s
        Seconds without a new event; 0 where it is not stalled.
    """
    word = OUTCOME[outcome]
    if stalled_s:
        text = f"running, no new events for {stalled_s} s"
        return html.Span([html.I(className="dot"), text], className="outcome outcome-stalled")
    if outcome is Outcome.FILE:
        return html.Span()
    return html.Span([html.I(className="dot"), word], className=f"outcome outcome-{word}")


def when(time_ns: int) -> str:
    """Return local date and time of *time_ns* since the epoch; '' where unknown."""
    if time_ns <= 0:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, tz=timezone.utc).astimezone().strftime("%d %b %Y, %H:%M")


def run_header(view: View, address: Address, data: Data | None = None) -> html.Header:
    """Return name and state of the run, and the choice of its recordings; a report has no other runs."""
    process, device = view.recording.process, view.recording.device
    facts = [
        device.name or f"device {device.index}",
        format_bytes(device.total_bytes) if device.total_bytes else "",
        f"torch {process.torch}" if process.torch else "",
        process.host,
        when(view.run.started_ns),
    ]
    title = html.Div(
        [
            html.H1(_name(view, data), className="run-name", title=view.run.name[:500]),
            source_badge(view.recording.source),
            html.Span(outcome_dot(view.run.outcome), id="standing"),
        ],
        className="run-title",
    )
    return html.Header(
        [
            html.Div([title, html.P(" · ".join(fact for fact in facts if fact), className="facts")]),
            html.Div([report_link.link(view.run_id), recording_choice(view, address)], className="run-ways"),
        ],
        className="run-header",
    )


def _name(view: View, data: Data | None) -> str:
    whole = data.whole_run(view.run_id) if data is not None else None
    if data is None or whole is None:
        return view.run.name
    return f"{data.path(whole[0]).name} · rank {whole[1]}"


def recording_choice(view: View, address: Address) -> Any:
    """Return a menu of ranks and devices; nothing where there is only one."""
    if len(view.run.recordings) < 2:
        return html.Span()
    links = [
        dcc.Link(
            [html.Span(name_of(recording)), html.Span(f"{len(recording.trace):,} events", className="dim")],
            href=_to(recording, address).url,
            className="choice here" if recording is view.recording else "choice",
        )
        for recording in view.run.recordings
    ]
    summary = html.Summary([name_of(view.recording), html.Span("▾", className="dim")])
    return html.Details(
        [summary, html.Nav(links, className="choices")], className="recordings", id="recordings"
    )


def name_of(recording: Recording) -> str:
    """Return rank and device as ``rank 0 · device 3``."""
    return f"rank {recording.process.rank} · device {recording.device.index}"


def _to(recording: Recording, address: Address) -> Address:
    rank, device = recording.process.rank, recording.device.index
    return address.go(rank=rank, device=device, at=None, **UNZOOMED)


def notes(view: View) -> Any:
    """Return the notes of run and recording: what is missing, doubtful or repaired."""
    texts = [note.text for note in (*view.run.notes, *view.recording.notes)]
    if not texts:
        return html.Span()
    if len(texts) == 1:
        return html.P([html.Strong("Note "), texts[0]], className="notes")
    summary = html.Summary([html.Strong(f"{len(texts)} notes "), texts[0]])
    return html.Details([summary, html.Ul([html.Li(text) for text in texts[1:]])], className="notes")
