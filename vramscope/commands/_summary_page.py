"""The page of ``vramscope report``: a summary as headings, sentences and tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from vramscope import package_data
from vramscope.analysis.findings import Shared, located, ranks_words, shared
from vramscope.analysis.leaks.holders import holder_words
from vramscope.analysis.lines import NO_STACK, Line, LiveBytes, line_words, lines, module_words, place_words
from vramscope.analysis.private_pools import pool_words
from vramscope.analysis.summary import StepPeak, Summary, has_allocator, pinned_words
from vramscope.analysis.verdicts.missing import why_stopped
from vramscope.analysis.waterfall import BAR_WORDS, Bar, Waterfall, missing_parts
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands._ranks_page import by_fullness, ranks
from vramscope.model.codes import QUANTITIES, Severity
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording, Run
from vramscope.units import as_sentence, format_bytes, format_count, format_duration, format_share

_STEPS_SHOWN = 12
SECTIONS_SHOWN = 8
"""The most recordings that are shown in detail; of more, only the fullest is, to keep the report short."""
_NOTES_SHOWN, FINDINGS_SHOWN, _ROWS_SHOWN = 5, 8, 8
"""The limits of such a short page."""

_ENDINGS, _DRIVERS_VIEW, _HOST, _PARTS = (
    package_data.words(__file__, "_summary_page.tsv", kind) for kind in ("ending", "driver", "host", "part")
)


def page(run: Run, summaries: Sequence[Summary], top: int) -> Iterator[Block]:
    """Yield the whole report; long tables of stacks and steps are cut, and say so."""
    notes = chain(run.notes, *(summary.recording.notes for summary in summaries))
    ending = (
        "the recording stopped before the program did" if why_stopped(notes) else _ENDINGS[run.outcome.value]
    )
    yield Heading(f"{run.name} ({ending})", level=1)
    if run.error:
        yield Text(run.error, "error")
    for note in run.notes:
        yield Text(note.text, "note")
    if not summaries:
        yield Text("this run has no recordings", "warning")
    if len(summaries) == 1:
        yield from _recording(summaries[0], top)
        return
    ordered = by_fullness(summaries)
    found = shared(located((summary.recording, summary.findings) for summary in summaries))
    is_page = len(summaries) > SECTIONS_SHOWN
    yield from findings_page(found[:FINDINGS_SHOWN] if is_page else found, n_recordings=len(summaries))
    if is_page and len(found) > FINDINGS_SHOWN:
        yield Text(f"{format_count(len(found) - FINDINGS_SHOWN, 'more finding')} (--json)", "quiet")
    yield from ranks(ordered)
    if is_page:
        yield from _fullest(ordered, top)
        return
    for summary in ordered:
        yield from _recording(summary, top, has_findings=False)


def _fullest(ordered: Sequence[Summary], top: int) -> Iterator[Block]:
    notes: dict[str, list[Recording]] = {}
    for summary in ordered:
        for note in summary.recording.notes:
            notes.setdefault(note.text, []).append(summary.recording)
    for text, recordings in list(notes.items())[:_NOTES_SHOWN]:
        pairs = [(each.process.rank, each.device.index) for each in recordings]
        yield Text(f"{ranks_words(pairs)}: {text}", "note")
    if len(notes) > _NOTES_SHOWN:
        yield Text(f"{format_count(len(notes) - _NOTES_SHOWN, 'more note')} (--json)", "quiet")
    yield from fullest(ordered[0], top, "the fullest of all")


def fullest(summary: Summary, top: int, why: str) -> Iterator[Block]:
    """Yield one recording of many in detail; *why* is the reason why it is this one."""
    yield Heading(_title(summary.recording))
    yield Text(f"{why}; --rank N and --device N show another one", "quiet")
    yield from _lower_bounds(summary)
    yield Text(_extent(summary), "quiet")
    if has_allocator(summary.recording):
        yield _quantities(summary)
    yield from _sampled(summary)
    yield from _live_set(summary, min(top, _ROWS_SHOWN))
    yield from _categories(summary)


def _title(recording: Recording) -> str:
    device = recording.device
    title = f"rank {recording.process.rank}, device {device.index}"
    name = " ".join(
        filter(None, [device.name, format_bytes(device.total_bytes) if device.total_bytes else ""])
    )
    source = _unreal(recording)
    return ", ".join(filter(None, [title, recording.run_words, name, source if source not in name else ""]))


_UNREAL = {
    "simulated": "simulated: real tensors of a training without a GPU, in a model of CUDA's allocator",
    "predicted": "predicted: a dry run without a GPU, of shapes alone, in a model of CUDA's allocator",
}


def _unreal(recording: Recording) -> str:
    """Return ``simulated`` or ``predicted``; '' for memory that a GPU had."""
    words = (recording.source, recording.device.kind)
    return next((word for word in _UNREAL if word in words), "")


def _recording(summary: Summary, top: int, *, has_findings: bool = True) -> Iterator[Block]:
    recording = summary.recording
    yield Heading(_title(recording))
    if _unreal(recording):
        yield Text(_UNREAL[_unreal(recording)], "quiet")
    if recording.prediction is not None:
        yield Text(recording.prediction.sentence)
    yield from _headline(summary)
    for note in recording.notes:
        if not any(note.text in finding.claim for finding in summary.findings):
            yield Text(note.text, "note")
    yield from _lower_bounds(summary)
    yield Text(_extent(summary), "quiet")
    if has_findings:
        yield from findings_page(shared(located([(recording, summary.findings)])))
    if summary.outlook.text:
        yield Text(summary.outlook.text, "warning" if summary.outlook.forecast else "plain")
    if has_allocator(recording):
        yield _quantities(summary)
    yield from _sampled(summary)
    yield from waterfall(summary)
    yield from _samples(summary)
    found = summary.pinned
    if found is not None and found.peak_bytes:
        title, held = pinned_words(summary.recording, found)
        yield Heading(title, level=3)
        yield Text(held, "quiet")
        yield live_table(found.live, top)
    yield from _identity(summary)
    yield from _live_set(summary, top)
    yield from _categories(summary)
    yield from _private_pools(summary)
    yield from _annotated(summary, top)
    yield from _steps([step for step in summary.steps if step.allocated_bytes is not None], summary.outside)


def _headline(summary: Summary) -> Iterator[Block]:
    """Yield the peak, when it was, and the line that held most of it, in one sentence."""
    high, places = summary.peak["allocated"], lines(summary.live)
    total = sum(line.n_bytes for line in places)
    if not total or high.n_bytes != total:
        return
    bound = "" if summary.verdicts.peak_is_exact else "at least "
    when = "" if high.step is None else f"step {high.step}", high.phase_words or ""
    place = "".join(f" in {each}" for each in when if each)
    most = next((line for line in places if line.frames), places[0])
    holder, share = line_words(replace(most, n_folded=0)), format_share(most.n_bytes, total)
    who = f"{share} of it: {holder}" if _names_any(summary) else "by whom is not recorded"
    yield Text(f"Peak {bound}{format_bytes(high.n_bytes)} allocated{place}; {who}")


def _names_any(summary: Summary) -> bool:
    """Return whether anything is known of who allocated what was live at the peak."""
    return {line_words(line) for line in lines(summary.live)} != {NO_STACK}


def _lower_bounds(summary: Summary) -> Iterator[Block]:
    if not summary.verdicts.peak_is_exact:
        why = summary.verdicts.missing[0].text
        yield Text(f"peaks below are lower bounds, and steps and findings incomplete: {why}", "warning")


def _sampled(summary: Summary) -> Iterator[Block]:
    found = summary.sampled
    if found is None:
        return
    bound = "" if found.is_exact else "at least "
    levels = [("allocated", bound, found.allocated_bytes), ("reserved", "at least ", found.reserved_bytes)]
    known = [f"{name} {least}{format_bytes(n_bytes)}" for name, least, n_bytes in levels if n_bytes >= 0]
    if known:
        yield Text(f"peak {', '.join(known)}")
    if found.is_reset:
        yield Text("the program resets torch's peaks itself, so every peak is a lower bound", "quiet")


def _samples(summary: Summary) -> Iterator[Block]:
    """Yield the maxima of the counters; events, if there are any, give torch's part in more detail."""
    by = "the program printed" if summary.recording.source == "log" else "the driver reported"
    yield from _highest(summary, f"Highest values that {by}", _DRIVERS_VIEW)
    yield from _highest(summary, "Most host memory", _HOST)


def _highest(summary: Summary, title: str, words: Mapping[str, str]) -> Iterator[Block]:
    counters = summary.recording.counters
    rows = tuple(
        (
            words[name],
            _sample(name, value),
            _after(counters, int(getattr(counters, name).argmax())),
            _sample(name, int(getattr(counters, name)[-1])),
        )
        for name, value in summary.samples.items()
        if name in words
    )
    if rows:
        n_samples = format_count(len(counters), "sample")
        yield Heading(f"{title}, in {n_samples}", level=3)
        yield Grid(("", "highest", "first", "at the end"), rows, "lrrr")


def _after(counters: Counters, row: int) -> str:
    """Return the time of a sample since the first one; empty if samples have no clock."""
    if not counters.has_clock:
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
    parts = [format_count(len(trace) + n_past, "event")] if has_allocator(recording) else []
    if n_past:
        parts[-1] += f" ({len(trace):,} with detail)"
    if len(recording.counters):
        parts.append(format_count(len(recording.counters), "sample"))
    times = trace.time_ns if trace.has_clock else recording.counters.time_ns
    if trace.has_clock or recording.counters.has_clock:
        parts.append(format_duration(int(times[-1] - times[0])))
    if n_steps:
        parts.append(format_count(n_steps, "step"))
    if recording.process.torch:
        parts.append(f"torch {recording.process.torch}")
    return ", ".join(parts)


def _quantities(summary: Summary) -> Grid:
    unknown = summary.recording.unknown_quantities
    shown = [
        ("unknown", "unknown", "")
        if quantity in unknown
        else (
            format_bytes(summary.end[quantity]),
            format_bytes(high.n_bytes),
            high.where or (f"event {high.instant:,}" if high.instant > 0 else "the start"),
        )
        for quantity, high in ((quantity, summary.peak[quantity]) for quantity in QUANTITIES)
    ]
    rows = tuple(zip(("at the end", "peak", "peak in"), *shown, strict=True))
    return Grid(("", *QUANTITIES), rows, "lrrrr")


def _private_pools(summary: Summary) -> Iterator[Block]:
    rows = tuple(
        (
            str(pool.id),
            format_bytes(pool.reserved_bytes),
            format_bytes(pool.allocated_bytes),
            pool_words(pool.kind, pool.place),
        )
        for pool in summary.private_pools
    )
    if rows:
        yield Heading("Private pools (CUDA graphs, torch.cuda.MemPool) when most was allocated", level=3)
        yield Grid(("pool", "reserved", "allocated", "which is"), rows, "lrrl")


def _annotated(summary: Summary, top: int) -> Iterator[Block]:
    shown = list(summary.annotated.items())[:top]
    rows = [(format_bytes(n_bytes), f"{n_blocks:,}", text[:200]) for text, (n_blocks, n_bytes) in shown]
    if rows:
        rest = len(summary.annotated) - len(rows)
        rows += (
            [("", "", f"{format_count(rest, 'more text')} (--top {len(summary.annotated)})")] if rest else []
        )
        yield Heading("Annotations of the program, on what was allocated at the peak", level=3)
        yield Grid(("bytes", "blocks", "text"), tuple(rows), "rrl")


def _identity(summary: Summary) -> Iterator[Block]:
    reserved = sum(summary.identity.values())
    if not reserved:
        return
    yield Heading(f"{format_bytes(reserved)} reserved when most was allocated", level=3)
    parts = dict(_PARTS)
    if summary.returnable_bytes:
        returned = format_bytes(summary.returnable_bytes)
        parts["inactive_split"] += f" (empty_cache() returns {returned} of them)"
    rows = tuple(
        (text, format_bytes(summary.identity[part]), format_share(summary.identity[part], reserved))
        for part, text in parts.items()
        if part in summary.identity
    )
    yield Grid(("", "bytes", "share"), rows, "lrr")


def _live_set(summary: Summary, top: int) -> Iterator[Block]:
    total = sum(row.n_bytes for row in summary.live)
    if not total or not _names_any(summary):
        return
    is_all = total == summary.peak["allocated"].n_bytes
    of = "at the peak" if is_all else "at the peak of the events with detail"
    if above := summary.recording.peak().above_events:
        of += f" (the peak is {above})"
    yield Heading(f"{format_bytes(total)} allocated {of}, by the line that allocated it", level=3)
    yield live_table(summary.live, top)


def live_table(live: Sequence[LiveBytes], top: int, *, has_holders: bool = False) -> Grid:
    """Return the *top* lines and the sum of the rest; with their categories and who keeps them if asked."""
    places = lines(live)
    total = sum(line.n_bytes for line in places)

    def more(line: Line) -> tuple[str, ...]:
        kinds = ", ".join(each.name.lower().replace("_", " ") for each in line.categories)
        return (kinds, holder_words(line.holders)) if has_holders else ()

    rows = [
        (*_amount(line.n_bytes, line.n_blocks, total), *more(line), line_words(line)) for line in places[:top]
    ]
    rest = places[top:]
    if rest:
        n_bytes, n_blocks = sum(line.n_bytes for line in rest), sum(line.n_blocks for line in rest)
        words = f"{format_count(len(rest), 'more place')} (--top {len(places)})"
        rows.append((*_amount(n_bytes, n_blocks, total), *(("", "") if has_holders else ()), words))
    extra = ("category", "kept by") if has_holders else ()
    return Grid(("bytes", "share", "blocks", *extra, "line"), tuple(rows), f"rrr{'l' * len(extra)}l")


def _amount(n_bytes: int, n_blocks: int, total: int) -> tuple[str, ...]:
    return format_bytes(n_bytes), format_share(n_bytes, total), f"{n_blocks:,}"


def _categories(summary: Summary) -> Iterator[Block]:
    if summary.categories is None:
        return
    at_peak, own = summary.categories, summary.category_peaks or {}
    total = sum(at_peak.values())
    yield Heading("The same bytes by category, and each category's own peak", level=3)
    names = sorted({**at_peak, **own}, key=lambda name: (-at_peak.get(name, 0), -own.get(name, 0)))
    rows = tuple(
        (name.replace("_", " "), format_bytes(n), format_share(n, total), format_bytes(own.get(name, 0)))
        for name, n in ((name, at_peak.get(name, 0)) for name in names)
    )
    yield Grid(("", "at the peak", "share", "own peak"), rows, "lrrr")


def _steps(steps: Sequence[StepPeak], outside: StepPeak | None) -> Iterator[Block]:
    if not steps:
        return
    is_exact = all(step.is_exact for step in steps)
    yield Heading("Peak allocated bytes of each step and phase", level=3)
    if not is_exact:
        yield Text("≥: known from samples only; the true peaks of step and phases may be higher", "quiet")
    every = [*steps, outside] if outside is not None else steps
    phases = list(dict.fromkeys(phase for step in every for phase in step.phases))
    phases.sort(key="other".__eq__)  # memory in no phase comes last
    shown = _telling(steps)
    rows = tuple(
        (
            "outside" if step.index is None else str(step.index),
            ("" if step.is_exact else "≥ ") + format_bytes(step.allocated_bytes or 0),
            *(format_bytes(step.phases[phase]) if phase in step.phases else "" for phase in phases),
        )
        for step in (*shown, *([outside] if outside is not None else []))
    )
    yield Grid(
        ("step", "peak", *(phase.replace("_", " ") for phase in phases)), rows, "r" * (2 + len(phases))
    )
    if len(shown) < len(steps):
        yield Text(f"{format_count(len(steps) - len(shown), 'more step')}, none higher", "quiet")
    highest = max(step.allocated_bytes or 0 for step in steps)
    if outside is not None and (outside.allocated_bytes or 0) > highest:
        peak = format_bytes(outside.allocated_bytes or 0)
        marked = [phase.replace("_", " ") for phase in steps[0].phases if phase != "other"]
        if len(steps) == 1 and not {"forward", "backward"} & {*steps[0].phases}:
            where = f"before or after what is marked of step {steps[0].index}: its {' and '.join(marked)}"
        else:
            where = "outside of every step"
        yield Text(f"the peak of the run, {peak}, lies {where}", "quiet")


def _telling(steps: Sequence[StepPeak]) -> list[StepPeak]:
    """Return all steps if there are few, else the first two, the last two and the highest, in order."""
    if len(steps) <= _STEPS_SHOWN:
        return list(steps)
    ends = [*range(2), *range(len(steps) - 2, len(steps))]
    middle = sorted(range(2, len(steps) - 2), key=lambda at: -(steps[at].allocated_bytes or 0))
    return [steps[at] for at in sorted([*ends, *middle[: _STEPS_SHOWN - len(ends)]])]


def findings_page(found: Sequence[Shared], n_recordings: int = 1) -> Iterator[Block]:
    """Yield a sentence for each finding, with its ranks where there are several recordings."""
    for finding, rank, device, of, differs in found:
        place = place_words(finding.file, finding.line or 0) if finding.file else ""
        module = f" in {module_words(finding.module)}" if finding.module else ""
        module += ", in its backward" if finding.evidence.get("in_backward") else ""
        where = f" ({place}{module})" if place and place not in finding.claim else ""
        most = f" (figures of {ranks_words([(rank, device)])})" if differs else ""
        whose = f"{ranks_words(of)}{most}: " if n_recordings > 1 else ""
        advice = f". {as_sentence(finding.advice)}" if finding.advice else ""
        kind = "plain" if finding.severity == Severity.INFO else finding.severity
        yield Text(f"{whose}{finding.claim}{where}{advice}", kind)


def waterfall(summary: Summary) -> Iterator[Block]:
    """Yield the fullest sample next to the last one; nothing if torch's counters were not sampled."""
    found = summary.waterfall
    if not len(found) or found.reserved_bytes.max() < 0:
        return
    fullest, last = found.bars(found.fullest), found.bars(found.last)
    if all(bar.n_bytes is None for bar in fullest):
        return
    yield Heading("Where all bytes of the device are", level=3)
    rows = [_row(found, bar, last) for bar in fullest if bar.n_bytes is not None]
    yield Grid(("", "at the fullest", "share", "at the end", "by"), tuple(rows), "lrrrl")
    for reason, names in missing_parts(fullest).items():
        which = "; ".join(BAR_WORDS[name].in_terminal for name in names)
        yield Text(f"{which if len(names) < 5 else 'all other parts'}: {reason}", "quiet")
    drift = int(found.drift_bytes.max(initial=0))
    if drift:
        text = f"what is reserved or held changed by up to {format_bytes(drift)} while the driver was read"
        yield Text(f"{text}: what is outside of torch may be wrong by as much", "quiet")


def _row(found: Waterfall, bar: Bar, last: tuple[Bar, ...]) -> tuple[str, ...]:
    total = int(found.total_bytes[found.fullest])
    end = next((each.n_bytes for each in last if each.name == bar.name), None)
    share = format_share(bar.n_bytes or 0, total) if total > 0 else ""
    at_fullest, at_end = ("" if n_bytes is None else format_bytes(n_bytes) for n_bytes in (bar.n_bytes, end))
    return BAR_WORDS[bar.name].in_terminal, at_fullest, share, at_end, bar.source
