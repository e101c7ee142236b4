"""A summary in words: headings, sentences and tables."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from vramscope.analysis.peak import High
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands._lines import Line
from vramscope.commands._ranks_page import ranks
from vramscope.commands._summary import QUANTITIES, StepPeak, Summary, has_allocator, phase_word
from vramscope.commands._waterfall_page import waterfall
from vramscope.model.counters import Counters
from vramscope.model.recording import Outcome, Run
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes, format_duration

_CALLERS_SHOWN = 1
_STEPS_SHOWN = 12

_ENDINGS = {
    Outcome.RUNNING: "still running",
    Outcome.FINISHED: "finished",
    Outcome.FAILED: "failed",
    Outcome.DIED: "the process died while recording",
    Outcome.FILE: "a file",
}
_DRIVERS_VIEW = (
    "device_used_bytes",
    "device_total_bytes",
    "process_used_bytes",
    "others_used_bytes",
    "utilization_percent",
)
_URGENCY = {"error": -2, "warning": -1}
_PARTS = {
    "requested": "in use, as requested",
    "rounding": "rounding of requests to blocks",
    "pending": "freed, still used by another stream",
    "inactive_split": "free pieces of segments in use",
    "releasable": "free segments (empty_cache() returns them)",
}


def page(run: Run, summaries: Sequence[Summary], top: int) -> Iterator[Block]:
    """The whole report; tables of stacks and steps are cut to what a person reads, and say so."""
    yield Heading(f"{run.name} ({_ENDINGS[run.outcome]})", level=1)
    if run.error:
        yield Text(run.error, "error")
    for note in run.notes:
        yield Text(note.text, "note")
    if not summaries:
        yield Text("no recordings in here", "warning")
    yield from ranks(summaries)
    for summary in summaries:
        yield from _recording(summary, top)


def _recording(summary: Summary, top: int) -> Iterator[Block]:
    recording = summary.recording
    device = recording.device
    title = f"rank {recording.process.rank}, device {device.index}"
    name = " ".join(
        filter(None, [device.name, format_bytes(device.total_bytes) if device.total_bytes else ""])
    )
    simulated = "simulated" if "simulated" in (recording.source, device.kind) else ""
    yield Heading(", ".join(filter(None, [title, name, "" if simulated in name else simulated])))
    if simulated:
        yield Text(
            "simulated: real tensors of a training without a GPU, in a model of CUDA's allocator", "quiet"
        )
    for note in recording.notes:
        yield Text(note.text, "note")
    yield Text(_extent(summary), "quiet")
    yield from _findings(summary)
    if has_allocator(recording):
        yield _quantities(summary)
    yield from _sampled(summary)
    yield from waterfall(summary)
    yield from _samples(summary)
    yield from _identity(summary)
    yield from _live_set(summary, top)
    yield from _categories(summary)
    yield from _steps([step for step in summary.steps if step.allocated_bytes is not None])


def _sampled(summary: Summary) -> Iterator[Block]:
    """Peaks without events: at least so much."""
    found = summary.sampled
    if found is None or found.allocated < 0:
        return
    bound = "" if found.is_exact else "at least "
    yield Text(
        f"peak allocated {bound}{format_bytes(found.allocated)}, reserved at least "
        f"{format_bytes(found.reserved)}"
    )
    if found.is_reset:
        yield Text("the program resets torch's peaks itself, so every peak is a lower bound", "quiet")


def _samples(summary: Summary) -> Iterator[Block]:
    """What counters said at most; events, where there are any, say more of what is torch's."""
    counters = summary.recording.counters
    rows = tuple(
        (
            name.removesuffix("_bytes").removesuffix("_percent").replace("_", " "),
            _sample(name, value),
            _after(counters, int(getattr(counters, name).argmax())),
            _sample(name, int(getattr(counters, name)[-1])),
        )
        for name, value in summary.samples.items()
        if name in _DRIVERS_VIEW
    )
    if rows:
        yield Heading(f"The driver's view at most, of {_count(len(counters), 'sample')}", level=3)
        yield Grid(("", "most", "first", "at the end"), rows, "lrrr")


def _after(counters: Counters, row: int) -> str:
    """When a sample was taken; '' where samples have no clock."""
    if not counters.time_ns.any():
        return ""
    since = int(counters.time_ns[row] - counters.time_ns[0])
    return f"after {format_duration(since)}" if since > 0 else "at the start"


def _sample(name: str, value: int) -> str:
    if value < 0:
        return "unknown"
    return format_bytes(value) if name.endswith("_bytes") else f"{value} %"


def _extent(summary: Summary) -> str:
    recording = summary.recording
    trace = recording.trace
    n_past, n_steps = recording.past.n_events, len(recording.past.steps) + len(recording.steps)
    parts = [_count(len(trace) + n_past, "event")] if has_allocator(recording) else []
    if n_past:
        parts[-1] += f" ({len(trace):,} with detail)"
    if len(recording.counters):
        parts.append(_count(len(recording.counters), "sample"))
    times = trace.time_ns if trace.has_clock else recording.counters.time_ns
    if times.any():
        parts.append(format_duration(int(times[-1] - times[0])))
    if n_steps:
        parts.append(_count(n_steps, "step"))
    if recording.process.torch:
        parts.append(f"torch {recording.process.torch}")
    return ", ".join(parts)


def _quantities(summary: Summary) -> Grid:
    shown = [
        (format_bytes(summary.end[quantity]), format_bytes(high.n_bytes), _when(high))
        if quantity != "reserved" or summary.recording.has_reserved
        else ("unknown", "unknown", "")
        for quantity, high in ((quantity, summary.peak[quantity]) for quantity in QUANTITIES)
    ]
    rows = tuple(zip(("at the end", "peak", "peak in"), *shown, strict=True))
    return Grid(("", *QUANTITIES), rows, "lrrrr")


def _when(high: High) -> str:
    step = "" if high.step is None else f"step {high.step}"
    phase = "" if high.phase is None else phase_word(high.phase).replace("_", " ")
    return " ".join(filter(None, [step, phase])) or (
        f"event {high.instant:,}" if high.instant > 0 else "the start"
    )


def _identity(summary: Summary) -> Iterator[Block]:
    reserved = sum(summary.identity.values())
    if not reserved:
        return
    yield Heading(f"{format_bytes(reserved)} reserved when most was allocated", level=3)
    rows = tuple(
        (text, format_bytes(summary.identity[part]), _share(summary.identity[part], reserved))
        for part, text in _PARTS.items()
    )
    yield Grid(("", "bytes", "share"), rows, "lrr")


def _live_set(summary: Summary, top: int) -> Iterator[Block]:
    total = sum(line.n_bytes for line in summary.lines)
    if not total:
        return
    is_all = total == summary.peak["allocated"].n_bytes
    of = "at the peak" if is_all else "at the peak of the events with detail"
    yield Heading(f"{format_bytes(total)} allocated {of}, by where it was allocated", level=3)
    shown = summary.lines[:top]
    rows = [_line(line, total) for line in shown]
    rest = summary.lines[top:]
    if rest:
        n_bytes, n_blocks = sum(line.n_bytes for line in rest), sum(line.n_blocks for line in rest)
        rows.append(
            (
                *_amount(n_bytes, n_blocks, total),
                f"{_count(len(rest), 'more place')} (--top {len(summary.lines)})",
            )
        )
    yield Grid(("bytes", "share", "blocks", "where"), tuple(rows), "rrrl")


def _line(line: Line, total: int) -> tuple[str, ...]:
    return (*_amount(line.n_bytes, line.n_blocks, total), _place(line))


def _amount(n_bytes: int, n_blocks: int, total: int) -> tuple[str, ...]:
    return format_bytes(n_bytes), _share(n_bytes, total), f"{n_blocks:,}"


def _place(line: Line) -> str:
    """``app/train.py:31 forward: linear ← app/train.py:60 train  +7 frames``, innermost first."""
    calls = [_frame(frame) for frame in line.frames[: 1 + _CALLERS_SHOWN]]
    if line.via:
        calls[:1] = [f"{calls[0]}: {line.via}"] if calls else [line.via]
    if not calls:
        return f"{line.n_folded} frames of C++" if line.n_folded else "no stack was recorded"
    hidden = line.n_folded + max(0, len(line.frames) - 1 - _CALLERS_SHOWN)
    return " ← ".join(calls) + (f"  +{hidden} frames" if hidden else "")


def _frame(frame: Frame) -> str:
    return f"{_short(frame.file)}:{frame.line} {frame.function}"


def _short(file: str) -> str:
    """The last folder and the name: enough to know the file by."""
    return str(PurePath(*PurePath(file.replace("\\", "/")).parts[-2:]))


def _categories(summary: Summary) -> Iterator[Block]:
    if summary.categories is None:
        return
    at_peak, own = summary.categories, summary.category_peaks or {}
    total = sum(at_peak.values())
    yield Heading("The same bytes by category, and each category's own peak", level=3)
    names = sorted({**at_peak, **own}, key=lambda name: (-at_peak.get(name, 0), -own.get(name, 0)))
    rows = tuple(
        (name.replace("_", " "), format_bytes(n), _share(n, total), format_bytes(own.get(name, 0)))
        for name, n in ((name, at_peak.get(name, 0)) for name in names)
    )
    yield Grid(("", "at the peak", "share", "own peak"), rows, "lrrr")


def _steps(steps: Sequence[StepPeak]) -> Iterator[Block]:
    if not steps:
        return
    is_exact = all(step.is_exact for step in steps)
    yield Heading("Peak allocated bytes of each step and phase", level=3)
    if not is_exact:
        yield Text("≥: only samples tell, the peak may be higher; so may every phase's", "quiet")
    phases = list(dict.fromkeys(phase for step in steps for phase in step.phases))
    phases.sort(key="other".__eq__)  # what is in no phase, last
    shown = _telling(steps)
    rows = tuple(
        (
            str(step.index),
            ("" if step.is_exact else "≥ ") + format_bytes(step.allocated_bytes or 0),
            *(format_bytes(step.phases[phase]) if phase in step.phases else "" for phase in phases),
        )
        for step in shown
    )
    yield Grid(
        ("step", "peak", *(phase.replace("_", " ") for phase in phases)), rows, "r" * (2 + len(phases))
    )
    if len(shown) < len(steps):
        yield Text(f"{_count(len(steps) - len(shown), 'more step')}, none higher", "quiet")


def _telling(steps: Sequence[StepPeak]) -> list[StepPeak]:
    """All of a few; of many, the first two, the last two and the highest, in order."""
    if len(steps) <= _STEPS_SHOWN:
        return list(steps)
    ends = [*range(2), *range(len(steps) - 2, len(steps))]
    middle = sorted(range(2, len(steps) - 2), key=lambda at: -(steps[at].allocated_bytes or 0))
    return [steps[at] for at in sorted([*ends, *middle[: _STEPS_SHOWN - len(ends)]])]


def _findings(summary: Summary) -> Iterator[Block]:
    for finding in sorted(summary.findings, key=lambda each: _URGENCY.get(each.severity, 0)):
        where = f" ({_short(finding.file)}:{finding.line})" if finding.file else ""
        advice = f". {finding.advice}" if finding.advice else ""
        kind = "plain" if finding.severity == "info" else finding.severity
        yield Text(f"{finding.claim}{where}{advice}", kind)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""
