"""The header of a page: the run, its source, device and state, and the choice of its recordings."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from dash import html

from vramscope.analysis.pace import StepPace, left_s, pace
from vramscope.analysis.verdicts.missing import Part, missing_parts
from vramscope.model.codes import NoteCode
from vramscope.model.recording import Outcome, Recording
from vramscope.units import format_bytes, format_rough_duration

from ..address import UNZOOMED, Address
from ..data import Data, View
from ..queries.headline import ahead, forecast_words
from .definitions import DEFINITION, explained
from .prose import sentence

REPORT_PATH = "/api/report"
SOURCE = {"simulated": "simulated", "predicted": "predicted", "cuda": "cuda", "snapshot": "file"}


def source_badge(source: str) -> Any:
    """Return the badge that names the source; a simulated or predicted device always shows one."""
    word = SOURCE.get(source, source)
    badge = html.Span(word, className=f"badge badge-{SOURCE.get(source, 'other')}", tabIndex="0")
    return explained(badge, DEFINITION.get(word, f"Recorded by {word}."))


def shown_outcome(outcome: Outcome, source: str) -> Outcome:
    """Return the state to show: a prediction ran nothing, so it neither ended nor failed."""
    return Outcome.FILE if source == "predicted" and outcome is not Outcome.RUNNING else outcome


def outcome_dot(outcome: Outcome, stalled_s: int = 0) -> html.Span:
    """Return the state of a run as a word with a dot, never as a color alone.

    *stalled_s* are seconds without a new event; 0 where it is not stalled.
    """
    word = outcome.word
    if stalled_s:
        text = f"running, no new events for {stalled_s} s"
        return html.Span([html.I(className="dot"), text], className="outcome outcome-stalled")
    if outcome is Outcome.FILE:
        return html.Span()
    return html.Span([html.I(className="dot"), word], className=f"outcome outcome-{word}")


def standing(
    outcome: Outcome,
    far: StepPace | None,
    stalled_s: int = 0,
    total_steps: int = 0,
    ahead: Sequence[str] = (),
) -> list[Any]:
    """Return the state of a run, and how far it is; a run that stalls has no pace to count on.

    *ahead* says when the limit of the device is reached, as ``forecast_words`` returns it.
    """
    known = [outcome_dot(outcome, stalled_s), " ", progress(outcome, far, 0 if stalled_s else total_steps)]
    if not ahead or stalled_s:
        return known
    short, text, tone = ahead
    return [*known, " ", html.Span(f"· {short}", className=f"outcome ahead {tone}", title=text)]


def progress(outcome: Outcome, far: StepPace | None, total_steps: int = 0) -> html.Span:
    """Return step, pace and time left of a run that is running; nothing for any other.

    The time left is missing where the program does not state how many steps it will make.
    """
    if outcome is not Outcome.RUNNING or far is None:
        return html.Span()
    per_s = far.steps_per_s or 0.0
    speed = f" · {per_s:.3g} steps/s" if per_s >= 1 else f" · {1 / per_s:.3g} s a step" if per_s else ""
    seconds = left_s(far, total_steps)
    left = "" if seconds is None else f" · about {format_rough_duration(seconds)} left"
    return html.Span(f"step {far.step:,}{speed}{left}", className="outcome pace")


def when(time_ns: int) -> str:
    """Return local date and time of *time_ns* since the epoch, with its zone; '' where unknown."""
    if time_ns <= 0:
        return ""
    there = datetime.fromtimestamp(time_ns / 1e9, tz=timezone.utc).astimezone()
    return there.strftime("%d %b %Y, %H:%M %Z")


def bare(name: str) -> html.Header:
    """Return a header with a title alone."""
    return html.Header(html.H1(name, className="run-name", title=name[:500]), className="run-header")


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
    state = standing(
        shown_outcome(view.run.outcome, view.recording.source),
        pace(view.recording.steps),
        total_steps=process.total_steps,
        ahead=forecast_words(ahead(data, view)) if data is not None and view.is_live else (),
    )
    name = html.H1(_name(view, data), className="run-name", title=view.run.name[:500])
    badge = source_badge(view.recording.source)
    title = html.Div([name, badge, html.Span(state, id="standing")], className="run-title")
    return html.Header(
        [
            html.Div([title, html.P(" · ".join(fact for fact in facts if fact), className="facts")]),
            html.Div([_report_link(view.run_id), recording_choice(view, address)], className="run-ways"),
        ],
        className="run-header",
    )


def _report_link(run_id: str) -> html.A:
    """Return the link that saves the run as one HTML file."""
    title = "This run as one HTML file that works from disk, without a server"
    to = f"{REPORT_PATH}?{urlencode({'run': run_id})}"
    return html.A("Save report", href=to, className="report-link only-live", title=title, download="")


def _name(view: View, data: Data | None) -> str:
    whole = data.runs.whole_run(view.run_id) if data is not None else None
    if data is None or whole is None:
        return view.run.name
    return f"{data.runs.path(whole[0]).name} · rank {whole[1]}"


def recording_choice(view: View, address: Address) -> Any:
    """Return a menu of ranks and devices; nothing where there is only one."""
    if len(view.run.recordings) < 2:
        return html.Span()
    links = [
        html.A(
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
    """Return rank and device as ``rank 0 · device 3``, with the run where it is not the first of a file."""
    names = f"rank {recording.process.rank}", f"device {recording.device.index}", recording.run_words
    return " · ".join(filter(None, names))


def _to(recording: Recording, address: Address) -> Address:
    rank, device = recording.process.rank, recording.device.index
    return address.go(rank=rank, device=device, restart=recording.process.restarts, at=None, **UNZOOMED)


def incomplete(view: View) -> list[Any]:
    """Return the banner over every page of a recording that lacks events or steps; nothing for others."""
    lacking = [each for each in missing_parts(view.recording) if each.part in (Part.EVENTS, Part.STEPS)]
    if not lacking:
        return []
    what = "Totals and peaks are lower bounds, and steps" if lacking[0].part is Part.EVENTS else "Steps"
    text = f"{sentence(lacking[0].text)} {what} and findings may be missing: no verdict rests on them."
    # A source that never has events is not damaged: only what should be there and is missing is red.
    tone = "banner" if lacking[0].code not in _NEVER_HAD else "banner quiet"
    return [html.Div([html.Strong("Incomplete. "), text], className=tone, role="status")]


_NEVER_HAD = (NoteCode.MOMENTS_ONLY, NoteCode.TOTALS_ONLY, NoteCode.COUNTERS_ONLY, NoteCode.NO_HISTORY)


def notes(view: View) -> Any:
    """Return the notes of run and recording: what is missing, doubtful or repaired."""
    texts = [note.text for note in (*view.run.notes, *view.recording.notes)]
    if not texts:
        return html.Span()
    if len(texts) == 1:
        return html.P([html.Strong("Note "), texts[0]], className="notes")
    summary = html.Summary([html.Strong(f"{len(texts)} notes "), texts[0]])
    return html.Details([summary, html.Ul([html.Li(text) for text in texts[1:]])], className="notes")
