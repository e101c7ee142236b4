"""Does memory grow from step to step, where, by which mistake, and who keeps it?

Asked of the level at the same point of every step, by the line that allocated it. Three kinds of growth have
three verdicts: what is allocated (a leak), what the allocator keeps beyond it (fragmentation, no leak), and
what the driver counts beyond that (outside of torch).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis.categories import Assigned, Reason, assign
from vramscope.analysis.leaks.batch import Batch, growing_batch
from vramscope.analysis.leaks.causes import (
    ADVICE,
    CAUSES,
    Facts,
    cause_of,
)
from vramscope.analysis.leaks.edits import advice, as_written
from vramscope.analysis.leaks.evaluation_rounds import (
    are_enough,
    rounds,
)
from vramscope.analysis.leaks.growth import (
    LEAST_LEVELS,
    growth,
    window,
)
from vramscope.analysis.leaks.holders import (
    Held,
    group_of,
    held,
    is_bounded,
    is_nameless,
    kept_at,
    older_half,
    path_of,
    root_of,
)
from vramscope.analysis.leaks.iterations import turns
from vramscope.analysis.leaks.levels import Levels, Place, levels_of
from vramscope.analysis.leaks.outside import (
    cache_growth,
    outside_growth,
)
from vramscope.analysis.timeline import timeline
from vramscope.model.codes import FindingKind, LeakCause, Severity
from vramscope.model.finding import Finding
from vramscope.model.marks import BackwardKeeps, Category, MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.units import format_bytes

LEAST_BYTES_PER_STEP = 16 << 10
_LEAST_BYTES_OF_A_LINE = 512
_MOST_TURNS = 320
_LINES_TOLD = 5
_WARM_UP = 1
_LEAST_STEPS_HELD = 3


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that grows for one reason."""

    cause: LeakCause
    """The mistake, as far as the evidence decides."""
    holder: str | None
    """The variable, as the program would write it; None where nobody looked or found it."""
    edit: str
    """What ends it."""
    path: str | None
    """The whole way from a name to one of the blocks."""
    kept_at: tuple[str, int, str] | None
    """File, line and text of the statement that keeps it."""
    lines: tuple[tuple[Frame | None, float], ...]
    """Where it is allocated, with bytes per step, most first; None: no stack was recorded."""
    in_backward: tuple[bool, ...]
    """Of each line: whether it only called the backward that allocated, which has no stack of its own."""
    bytes_per_step: float
    n_bytes: int
    """Grown since the first step that was looked at."""
    first_step: int
    """Index of that step."""
    n_steps: int
    """Looked at."""
    confidence: float
    """0 to 1: how steadily it grows."""
    level: NDArray[Any]
    """Allocated bytes of its lines at every instant of ``Leaks.turns``."""
    rows: NDArray[Any]
    """Of ``lifetimes``: what was allocated since the first step looked at, and is alive at the last."""


@dataclass(frozen=True, slots=True)
class Leaks:
    """Every leak, the largest first, and the growth that is none."""

    turns: NDArray[Any] = field(default_factory=lambda: np.zeros(0, "i8"))
    """The instants that were compared: ends of steps, or the same point of an inferred loop."""
    has_steps: bool = False
    """Whether the steps are known, not inferred."""
    leaks: tuple[Leak, ...] = ()
    batch: Leak | None = None
    """A batch that grows from step to step: no leak. Its ``level`` is the most allocated in each step."""
    cache_bytes_per_step: float = 0.0
    """Reserved beyond allocated; 0 where it does not grow."""
    outside_bytes_per_step: float = 0.0
    """Of the process beyond reserved, by the driver; 0 where it does not grow or nobody asked the driver."""
    n_rises: int = 0
    """How often memory rose, where it rises every so many steps only, as with evaluations; else 0."""
    n_turns: int = 0
    """Steps, or turns of the loop, that were there to be compared."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is asked of a recording once."""

    levels: Levels
    holdings: Mapping[int, Held]
    assigned: Assigned
    retains_graph: bool
    creates_graph: bool
    backward_grows: bool


def leaks(recording: Recording, min_bytes_per_step: int = LEAST_BYTES_PER_STEP) -> Leaks:
    """What grows by *min_bytes_per_step* or more; needs 7 steps. 1 s per million events."""
    at, has_steps = turns(recording)
    if len(at) < LEAST_LEVELS:
        return Leaks(at, has_steps, n_turns=len(at))
    stride = -(-len(at) // _MOST_TURNS)
    found = _compared(recording, at[::-1][::stride][::-1], stride, min_bytes_per_step)
    every = rounds(timeline(recording).allocated[at])
    if are_enough(every) and not found.leaks and found.batch is None:
        now_and_then = _compared(recording, at[every], int(np.median(np.diff(every[1:]))), min_bytes_per_step)
        found = replace(found, leaks=now_and_then.leaks)
        if found.leaks:
            found = replace(found, turns=now_and_then.turns)
    return replace(found, has_steps=has_steps, n_rises=max(len(every) - 1, 0), n_turns=len(at))


def _compared(recording: Recording, at: NDArray[Any], stride: int, least: int) -> Leaks:
    """What is allocated at the instants *at*, each *stride* steps after the one before."""
    levels = levels_of(recording, at, stride)
    known = _known(levels)
    batch = growing_batch(levels)
    asked = [_leak(known, rows) for rows in _grouped(known, _growing(levels, batch)).values()]
    fed = None if batch is None or not batch.is_sure else _batch(known, batch)
    if fed is not None and fed.cause == LeakCause.UNKNOWN:
        asked, fed = [*asked, fed], None
    found = [leak for leak in asked if leak is not None and leak.bytes_per_step >= least]
    found.sort(key=lambda leak: -leak.bytes_per_step)
    return Leaks(
        turns=at,
        leaks=tuple(found),
        batch=fed if fed is not None and fed.bytes_per_step >= least else None,
        # The cache of a batch that grows follows its peaks.
        cache_bytes_per_step=0.0 if batch is not None else cache_growth(recording, at, stride, least),
        outside_bytes_per_step=outside_growth(recording, at, stride, least),
    )


def _known(levels: Levels) -> _Known:
    recording = levels.recording
    marks = recording.marks
    backward = marks.rows(
        (marks.kind == MarkKind.PHASE_BEGIN)
        & (marks.phase == Phase.BACKWARD)
        & (marks.event >= levels.at[window(len(levels.at))])
    )
    return _Known(
        levels=levels,
        holdings=held(recording, levels.found, levels.born),
        assigned=assign(recording, levels.found),
        retains_graph=BackwardKeeps.ITS_GRAPH in backward.value,
        creates_graph=BackwardKeeps.A_NEW_GRAPH in backward.value,
        backward_grows=_backward_grows(levels),
    )


def _backward_grows(levels: Levels) -> bool:
    """Whether backward makes more and more blocks: it walks through the graphs of ever more steps."""
    phases = levels.recording.phases
    number = np.zeros(len(levels.at) - 1, "i8")
    births = np.sort(levels.found.alloc_event)
    for row in np.flatnonzero(phases.phase == Phase.BACKWARD).tolist():
        turn = int(np.searchsorted(levels.at, phases.start_event[row], side="right")) - 1
        if 0 <= turn < len(number):
            start, end = np.searchsorted(births, [phases.start_event[row], phases.end_event[row]])
            number[turn] += end - start
    return growth(number) is not None


def _growing(levels: Levels, batch: Batch | None) -> dict[int, NDArray[Any]]:
    """Place → rows, of the places that grow.

    Where a batch grows, or may grow, only of places that hold ever more blocks.
    """
    grows = {}
    for place, rows in levels.by_place().items():
        found = growth(levels.series(rows))
        if found is None or found.per_step / levels.stride < _LEAST_BYTES_OF_A_LINE:
            continue
        if batch is None or growth(levels.count(rows)) is not None:
            grows[place] = rows
    return grows


def _grouped(known: _Known, grows: Mapping[int, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What grows, by who holds it; what nobody was seen to hold goes with the one holder there is."""
    groups: dict[str, list[NDArray[Any]]] = defaultdict(list)
    for rows in grows.values():
        for root, part in _by_root(known, rows).items():
            groups[root].append(part)
    held_by = [root for root in groups if root]
    if "" in groups and len(held_by) == 1:
        groups[held_by[0]] += groups.pop("")
    return {root: np.concatenate(parts) for root, parts in groups.items()}


def _by_root(known: _Known, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The rows of one line by the variable that holds them: one line can serve two lists."""
    roots = [group_of(holding) for holding in _evidence_of(known, rows)]
    if not roots:
        return {"": rows}
    # What one line allocates is kept by one mistake; a second root is how the walk came across it.
    return {max(set(roots), key=roots.count): rows}


def _stayed(known: _Known, rows: NDArray[Any]) -> NDArray[Any]:
    """Of *rows* those that were allocated since the first step looked at and are there to the end; where
    there are none (what grows is one block, made anew each time) all that were there since."""
    levels = known.levels
    since = rows[levels.born[rows] >= _first(levels)]
    stays = since[levels.gone[since] == len(levels.at)]
    # A block a step: less than half of them is what the last steps have at hand.
    n_steps = len(levels.at) - _first(levels)
    is_kept = 2 * len(np.unique(levels.born[stays])) >= n_steps
    kept: NDArray[Any] = stays if is_kept else since
    return kept


def _old(levels: Levels, rows: NDArray[Any]) -> NDArray[Any]:
    """Of *rows* what stays to the end, whenever it came, but for the warm-up; of one block that is made anew
    each time, all that were there. Holders may have been told long before the end."""
    since = rows[levels.born[rows] >= min(_WARM_UP, _first(levels))]
    stays = since[levels.gone[since] == len(levels.at)]
    n_steps = len(levels.at) - _first(levels)
    old: NDArray[Any] = stays if 2 * len(np.unique(levels.born[stays])) >= n_steps else since
    return old


def _evidence_of(known: _Known, rows: NDArray[Any]) -> list[Held]:
    """Who holds the older of *rows*. What keeps a leak keeps blocks of several steps; a variable that was
    seen to hold those of one or two is the step's own."""
    levels, holdings = known.levels, known.holdings
    old = _old(levels, rows)
    if (levels.gone[old] < len(levels.at)).any():
        return older_half(old, holdings)  # one block, made anew each time
    steps: dict[str, set[int]] = defaultdict(set)
    for row in old.tolist():
        if row in holdings:
            steps[group_of(holdings[row])].add(int(levels.born[row]))
    found = older_half(old, holdings)
    return [holding for holding in found if len(steps[group_of(holding)]) >= _LEAST_STEPS_HELD]


def _first(levels: Levels) -> int:
    return window(len(levels.at))


def _leak(known: _Known, rows: NDArray[Any]) -> Leak | None:
    stayed = _stayed(known, rows)
    holdings = _evidence_of(known, rows)
    if holdings and sum(map(is_bounded, holdings)) > len(holdings) / 2:
        return None
    cause = cause_of(_facts(known, stayed, holdings))
    return _told(known.levels, rows, stayed, cause, holdings)


def _batch(known: _Known, batch: Batch) -> Leak | None:
    """What a step is given, or a table that the program keeps and makes longer each time: cause unknown."""
    levels, source = known.levels, batch.source
    example = _example([known.holdings[row] for row in source.tolist() if row in known.holdings])
    if _is_kept(known, source, example):
        rows = batch.rows[levels.born[batch.rows] < levels.gone[batch.rows]]
        holdings = [] if example is None else [example]
        return _told(levels, rows, _stayed(known, rows), LeakCause.UNKNOWN, holdings)
    grows = growth(batch.peak)
    if grows is None:
        return None
    first = _first(levels)
    return Leak(
        cause=LeakCause.GROWING_BATCH,
        holder=None if example is None or is_nameless(example, "unknown") else as_written(example),
        edit=ADVICE[LeakCause.GROWING_BATCH],
        path=None if example is None else path_of(example),
        kept_at=None,
        lines=tuple((frame, rate) for (frame, _), rate in batch.lines),
        in_backward=tuple(in_backward for (_, in_backward), _ in batch.lines),
        bytes_per_step=grows.per_step / levels.stride,
        n_bytes=int(batch.peak[-1] - batch.peak[first]),
        first_step=first * levels.stride,
        n_steps=(len(batch.peak) - first) * levels.stride,
        confidence=grows.confidence,
        level=batch.peak,
        rows=batch.rows[levels.born[batch.rows] == len(levels.at) - 1],
    )


def _is_kept(known: _Known, rows: NDArray[Any], example: Held | None) -> bool:
    """Whether the program has it beyond a step, made longer each time: a table, a memory; not what a step is
    given."""
    category, reason = known.assigned.category[rows], known.assigned.reason[rows]
    of_model = np.isin(category, (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE))
    is_attribute = example is not None and example.has("attribute")
    return is_attribute or bool((of_model & (reason == Reason.IDENTITY)).any())


def _told(
    levels: Levels, rows: NDArray[Any], stayed: NDArray[Any], cause: LeakCause, holdings: list[Held]
) -> Leak | None:
    example = _example(holdings)
    level = levels.series(rows)
    grows = growth(level)
    if grows is None:
        return None
    first = _first(levels)
    lines = _lines(levels, rows)
    holder = None if example is None or is_nameless(example, cause) else as_written(example)
    return Leak(
        cause=cause,
        holder=holder,
        edit=advice(cause, holder, example, levels.recording.source, holdings),
        path=None if example is None else path_of(example),
        kept_at=None if example is None else kept_at(example),
        lines=tuple((frame, rate) for (frame, _), rate in lines),
        in_backward=tuple(in_backward for (_, in_backward), _ in lines),
        bytes_per_step=grows.per_step / levels.stride,
        n_bytes=int(level[-1] - level[first]),
        first_step=first * levels.stride,
        n_steps=(len(level) - first) * levels.stride,
        confidence=grows.confidence,
        level=level,
        rows=stayed,
    )


def _example(holdings: list[Held]) -> Held | None:
    """One with the root that most have; the shortest of them."""
    if not holdings:
        return None
    roots = [root_of(holding) for holding in holdings]
    usual = max(set(roots), key=roots.count)
    return min((each for each in holdings if root_of(each) == usual), key=lambda each: len(each.words))


def _facts(known: _Known, stayed: NDArray[Any], holdings: list[Held]) -> Facts:
    levels = known.levels
    size = levels.found.block_size[stayed]
    category, reason = known.assigned.category[stayed], known.assigned.reason[stayed]
    is_state = (category == Category.OPTIMIZER_STATE) & (reason == Reason.IDENTITY)
    is_parameter = (category == Category.PARAMETER) & (reason == Reason.IDENTITY)
    total = max(int(size.sum()), 1)
    return Facts(
        holdings=holdings,
        is_replaced=not (levels.gone[stayed] == len(levels.at)).all(),
        retains_graph=known.retains_graph,
        creates_graph=known.creates_graph,
        optimizer_fraction=int(size[is_state].sum()) / total,
        parameter_fraction=int(size[is_parameter].sum()) / total,
        gradient_fraction=int(size[category == Category.GRADIENT].sum()) / total,
        backward_grows=known.backward_grows,
    )


def _lines(levels: Levels, rows: NDArray[Any]) -> list[tuple[Place, float]]:
    found = []
    for place in np.unique(levels.place[rows]).tolist():
        grows = growth(levels.series(rows[levels.place[rows] == place]))
        if grows is not None:
            found.append((levels.places[place], grows.per_step / levels.stride))
    # Where no stack was recorded (autograd's own thread) is no line to show: last.
    return sorted(found, key=lambda line: (line[0][0] is None, -line[1]))


def findings(result: Leaks) -> list[Finding]:
    """Each leak, and growth that is no leak of tensors."""
    found = [_finding(leak, result) for leak in result.leaks]
    if result.batch is not None:
        found.append(_batch_finding(result.batch))
    if result.cache_bytes_per_step:
        rate = format_bytes(int(result.cache_bytes_per_step))
        what = "fragmentation of the cache, no leak"
        claim = f"reserved memory grows by {rate} a step beyond what is allocated: {what}"
        advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or sizes that vary less"
        found.append(_growth_finding(FindingKind.CACHE_GROWTH, claim, result.cache_bytes_per_step, advice))
    if result.outside_bytes_per_step:
        rate = format_bytes(int(result.outside_bytes_per_step))
        claim = f"the process grows by {rate} a step outside of torch's allocator: a library, not a tensor"
        advice = "look at what is created each step beside tensors: streams, NCCL groups, CUDA graphs"
        found.append(
            _growth_finding(FindingKind.OUTSIDE_GROWTH, claim, result.outside_bytes_per_step, advice)
        )
    return found


def _growth_finding(kind: FindingKind, claim: str, rate: float, advice: str) -> Finding:
    return Finding(kind, Severity.WARNING, claim, bytes_per_step=int(rate), advice=advice)


def _finding(leak: Leak, result: Leaks) -> Finding:
    frame = leak.lines[0][0] if leak.lines else None
    variable = leak.holder or "it"
    why = CAUSES[leak.cause].format(holder=variable)
    steps = "step" if result.has_steps else "turn of the loop"
    claim = f"memory grows by {format_bytes(round(leak.bytes_per_step))} a {steps}"
    kept = f" (`{leak.kept_at[2]}` in line {leak.kept_at[1]})" if leak.kept_at else ""
    return Finding(
        kind=FindingKind.LEAK,
        severity=Severity.WARNING,
        claim=f"{claim}: {why}{kept}" if why else f"{claim}{f'; {variable} keeps it' if leak.holder else ''}",
        file=frame and frame.file,
        line=frame and frame.line,
        function=frame and frame.function,
        cause=leak.cause,
        holder=leak.holder,
        n_bytes=leak.n_bytes,
        bytes_per_step=round(leak.bytes_per_step),
        advice=leak.edit,
        evidence=_evidence(leak),
    )


def _batch_finding(batch: Leak) -> Finding:
    frame = batch.lines[0][0] if batch.lines else None
    rate = format_bytes(round(batch.bytes_per_step))
    return Finding(
        kind=FindingKind.GROWING_BATCH,
        severity=Severity.WARNING,
        claim=f"every step needs {rate} more than the one before: {CAUSES[LeakCause.GROWING_BATCH]}, no leak",
        file=frame and frame.file,
        line=frame and frame.line,
        function=frame and frame.function,
        cause=LeakCause.GROWING_BATCH,
        holder=batch.holder,
        n_bytes=batch.n_bytes,
        bytes_per_step=round(batch.bytes_per_step),
        advice=batch.edit,
        evidence=_evidence(batch),
    )


def _evidence(leak: Leak) -> dict[str, Any]:
    return {
        "first_step": leak.first_step,
        "steps": leak.n_steps,
        "confidence": round(leak.confidence, 3),
        "blocks": len(leak.rows),
        "holder_path": leak.path,
        "kept_at": None
        if leak.kept_at is None
        else dict(zip(("file", "line", "code"), leak.kept_at, strict=True)),
        "lines": [
            {
                "file": frame and frame.file,
                "line": frame and frame.line,
                "function": frame and frame.function,
                "bytes_per_step": round(rate),
                "in_backward": in_backward,
            }
            for (frame, rate), in_backward in zip(leak.lines[:_LINES_TOLD], leak.in_backward, strict=False)
        ],
    }


ANALYSIS = Analysis(
    "leaks", "Does memory grow from step to step, where, by which mistake, and who keeps it?", leaks, findings
)
