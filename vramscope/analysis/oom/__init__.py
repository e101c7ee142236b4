"""Failed allocations: what was in use at that moment, the cause, and what to do about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vramscope.allocator.settings import SMALL_LIMIT
from vramscope.allocator.state_index import StateIndex, state_from_nearest
from vramscope.analysis import asking
from vramscope.analysis.by_module import modules_at, owners_of
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import calls_of_backward, fold
from vramscope.analysis.leaks import leaks
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.lines import common_module, module_words, place_words
from vramscope.analysis.oom.cause import Cause, Room, cause, room_at, without_totals
from vramscope.analysis.step_and_phase import step_and_phase_at, steps_of
from vramscope.analysis.strategies.optimizer import WITH_8_BITS, being_made
from vramscope.analysis.timeline import timeline
from vramscope.formats.log.oom_messages import figures_in
from vramscope.model.codes import FindingKind, NoteCode, Severity
from vramscope.model.finding import Finding, placed
from vramscope.model.marks import Category, MarkKind, Phase
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.stacks import Frame
from vramscope.model.table import Array, Int32, Int64, Table, sums_of
from vramscope.model.trace import Action
from vramscope.package_data import rows, words
from vramscope.units import format_bytes, format_name

_MOST_CATEGORIES = 3
_TOTALS = ("totals_only", "moments_only")
"""Notes of records in which one block stands for all that is allocated."""


class CategoryBytes(NamedTuple):
    """Bytes of one category."""

    name: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class InUse:
    """Memory allocated at one instant, by category, with the line that held the most."""

    by_category: tuple[CategoryBytes, ...] = ()
    """Largest first; unknown is one of them. They sum up to all allocated bytes."""
    line: Frame | None = None
    """The program's line that had allocated the most; None if no stack is known."""
    line_bytes: int = 0
    """Bytes that this line had allocated."""
    module: str = ""
    """Module of that line, or what several have in common; '' if not known."""
    making: tuple[str, str] = "", ""
    """What an optimizer's step was making at that instant, and what takes less."""

    @property
    def words(self) -> str:
        """A phrase such as ``214 MiB activation, 42 MiB parameter; 96 MiB of it from model.py:66``, or ''.

        It names categories only if these cover most of the bytes.
        """
        sums = [each for each in self.by_category if each.name != "unknown"]
        n_known, n_all = (sum(each.n_bytes for each in some) for some in (sums, self.by_category))
        is_mostly_known = 2 * n_known >= n_all
        known = [f"{format_bytes(each.n_bytes)} {each.name}" for each in sums] if is_mostly_known else []
        parts = [", ".join(known[:_MOST_CATEGORIES])] if known else []
        if self.line is not None:
            of_it = " of it" if known else ""
            module = f" in {module_words(self.module)}" if self.module else ""
            place = place_words(self.line.file, self.line.line)
            parts.append(f"{format_bytes(self.line_bytes)}{of_it} from {place}{module}")
        return "; ".join(parts)


def in_use_at(recording: Recording, events: Sequence[int]) -> list[InUse]:
    """Return the memory in use at each of *events*."""
    if not events or any(note.code in _TOTALS for note in recording.notes):
        return [InUse() for _ in events]
    found = lifetimes(recording)
    assigned, folded = assign(recording, found), fold(recording.stacks)
    category, owners = assigned.category, owners_of(recording, found, assigned)
    result = []
    for event in events:
        live = found.largest_at(event)
        n_bytes = found.block_size[live]
        sums = sums_of(category[live], n_bytes, len(Category))
        order = [i for i in np.argsort(-sums, kind="stable").tolist() if sums[i]]
        by_category = tuple(CategoryBytes(format_name(Category(i)), int(sums[i])) for i in order)
        lines: dict[tuple[str, int], list[int]] = {}
        modules: dict[int, set[str]] = {}
        rows = folded.of[found.stack_id[live]].tolist(), n_bytes.tolist(), owners.module[live].tolist()
        for stack, size, module in zip(*rows, strict=True):
            if stack:
                frame = folded.stacks.frame(stack)
                mine = lines.setdefault((frame.file, frame.line), [0, stack])
                mine[0] += size
                modules.setdefault(mine[1], set()).add(owners.paths[module])
        most, stack = max(lines.values(), default=[0, 0])
        line = folded.stacks.frame(stack) if stack else None
        made = making(recording, found, event, live[category[live] == Category.GRADIENT])
        result.append(InUse(by_category, line, most, common_module(modules.get(stack, ())), made))
    return result


_ROUNDING = 0.01
"""Relative error of a size in the message: two decimals, of at least 1.00."""


@dataclass(frozen=True, slots=True)
class OomMessage:
    """torch's message about a failed request; sizes are rounded as in the message."""

    text: str
    requested_bytes: int
    known: Mapping[str, int]
    """The other bytes by name, as in ``figures_in``."""


def message_of(text: str, requested_bytes: int) -> OomMessage | None:
    """Return the message in *text*; None if there is none, or if it is about another request.

    *requested_bytes* are as recorded: rounded up by the allocator.
    """
    found = figures_in(text)
    if found is None:
        return None
    requested, known = found
    # torch rounds requests up to 512 bytes; the message has the bytes before that, to two decimals.
    is_same = abs(requested - requested_bytes) <= max(_ROUNDING * requested_bytes, 1024)
    return OomMessage(text, requested, known) if is_same else None


# A batch-size search fails a few times; a program that fails all the time would fill the page.
_MOST_FINDINGS = 5
_WORTH_AN_INDEX = 5


_WORDS = {Cause(cause): texts for cause, *texts in rows(__file__, "causes.tsv")}
"""The sentence and the advice for each cause, and its figure in a ``Room``."""
_TOOLS = words(__file__, "advice.tsv", "tool")
"""What lists the processes of a device, by its kind; nvidia-smi for others."""
_TO_RECORD = words(__file__, "advice.tsv", "totals_alone")
"""Advice for an input that has totals alone, by the cause."""
_SPECIAL = words(__file__, "advice.tsv", "special")
_FIRST_STEPS = 3  # those of which none is said to need more than the ones before


@dataclass(frozen=True, slots=True)
class FailurePlace:
    """Step, phase and line of the program at which an allocation failed; None where unknown."""

    step: int | None = None
    phase: Phase | None = None
    frame: Frame | None = None
    """The innermost frame of the program's own."""
    is_in_backward: bool = False
    """Whether ``frame`` is the line that called backward: the request came from a thread of autograd."""


@dataclass(frozen=True, slots=True)
class Failures(Table):
    """One row per allocation that failed with an OutOfMemoryError."""

    event: Int64
    """Event of the failure; as an instant, the state that the request met."""
    time_ns: Int64
    """Time of the failure."""
    size_bytes: Int64
    """Bytes of the failed request, rounded as the allocator does."""
    allocated_bytes: Int64
    """Bytes allocated at the failure; −1 if not recorded."""
    reserved_bytes: Int64
    """Bytes reserved at the failure; −1 if not recorded."""
    largest_free_bytes: Int64
    """Bytes of the largest free block, of any pool and stream; −1 if the layout was not recorded."""
    device_free_bytes: Int64
    """Bytes that the driver still had; −1 if not recorded."""
    stack_id: Int32
    """Stack of the failed request."""
    where: tuple[FailurePlace, ...] = ()
    """Place of each row in the program."""
    rooms: tuple[Room | None, ...] = ()
    """Distribution of the device's bytes for each row; None except for the last few."""
    holders: tuple[InUse, ...] = ()
    """Memory in use for the last rows, as many as have findings."""
    modules: tuple[str, ...] = ()
    """Path of the module that ran at each row; '' if not known."""
    device_kind: str = "cuda"
    """The kind of the device."""
    has_single_events: bool = True
    """Whether the recording has single events, which can be listed and replayed."""
    is_predicted: bool = False
    """Whether a dry run has them: nothing failed, and no process holds what lies outside of the allocator."""


def oom(recording: Recording) -> Failures:
    """Find every failed allocation, with the state of the allocator that it met."""
    trace = recording.trace
    events = np.flatnonzero(trace.action == Action.OOM)
    totals = timeline(recording)
    # A message that is cut says nothing about totals.
    instants, first = np.unique(recording.counters.event, return_index=True)
    is_known = ~np.isin(events + 1, instants[recording.counters.allocated_bytes[first] < 0])
    has_totals_alone = any(
        note.code in (NoteCode.MOMENTS_ONLY, NoteCode.TOTALS_ONLY) for note in recording.notes
    )
    if not has_totals_alone:
        is_known[:] = True
    return Failures.of(
        event=events,
        time_ns=trace.time_ns[events],
        size_bytes=trace.size[events],
        allocated_bytes=np.where(is_known, totals.allocated_bytes[events], -1),
        reserved_bytes=np.where(is_known, totals.reserved_bytes[events], -1),
        largest_free_bytes=_largest_free(recording, events),
        device_free_bytes=_device_free(recording, events),
        stack_id=trace.stack_id[events],
        where=_where(recording, events),
        rooms=_rooms(recording, events, is_known),
        holders=tuple(in_use_at(recording, events[-_MOST_FINDINGS:].tolist())),
        modules=modules_at(recording.marks, events),
        device_kind="hip" if "rocm" in recording.process.torch else recording.device.kind,
        has_single_events=not has_totals_alone,
        is_predicted=recording.source == "predicted",
    )


def _rooms(recording: Recording, events: Array, is_known: Array) -> tuple[Room | None, ...]:
    device_free = _device_free(recording, events).tolist()
    pairs = list(zip(events.tolist(), device_free, strict=True))
    if not pairs:
        return ()
    grown = leaks(recording)
    unknown = [None] * len(pairs[:-_MOST_FINDINGS])
    rooms = [
        room_at(recording, event, free, leaked_bytes=grown.leaked_bytes(event), **_before(recording, event))
        for event, free in pairs[-_MOST_FINDINGS:]
    ]
    last = is_known[-_MOST_FINDINGS:].tolist()
    return (*unknown, *(room if has else without_totals(room) for room, has in zip(rooms, last, strict=True)))


def _before(recording: Recording, event: int) -> dict[str, int]:
    """Return what was allocated at most before the step that failed, and inputs, as ``Room`` has them."""
    (step,) = steps_of(recording.steps, np.array([event])).tolist()
    if step < _FIRST_STEPS or recording.past.n_events:
        return {}
    allocated = timeline(recording).allocated_bytes[: int(recording.steps.start_event[step]) + 1]
    most = int(allocated.argmax())
    now, then = (
        sum(each.n_bytes for each in held.by_category if each.name == "input")
        for held in in_use_at(recording, [event, most])
    )
    return {"before_bytes": int(allocated[most]), "inputs_bytes": now, "inputs_before_bytes": then}


def _largest_free(recording: Recording, events: Array) -> list[int]:
    if not recording.has_layout:
        return [-1] * len(events)
    return [
        int(state.blocks.size[state.blocks.state == BlockState.INACTIVE].max(initial=0))
        for state in _states(recording, events.tolist())
    ]


def _states(recording: Recording, instants: list[int]) -> Iterator[Snapshot]:
    """Yield one state after the other: programs that search for a batch size fail often."""
    if len(instants) < _WORTH_AN_INDEX:
        return (state_from_nearest(recording, instant) for instant in instants)
    index = StateIndex(recording.trace, recording.initial)
    return (index.at(instant) for instant in instants)


def _device_free(recording: Recording, events: Array) -> Array:
    """Return the driver's free bytes at each failure, from the mark that was made with it; −1 if none.

    The mark lies at the failure's instant, or at its exact time if another thread freed something before the
    mark was made.
    """
    marks = recording.marks.rows(recording.marks.kind == MarkKind.OOM)
    by_event = dict(zip(marks.event.tolist(), marks.value.tolist(), strict=True))
    by_time = dict(zip(marks.time_ns.tolist(), marks.value.tolist(), strict=True))
    times = recording.trace.time_ns[events].tolist()
    found = []
    for event, time_ns in zip(events.tolist(), times, strict=True):
        at_its_time = by_time.get(time_ns, -1) if time_ns else -1
        found.append(by_event.get(event + 1, by_event.get(event, at_its_time)))
    return np.array(found, dtype="i8")


def _where(recording: Recording, events: Array) -> tuple[FailurePlace, ...]:
    if not len(events):
        return ()
    folded = fold(recording.stacks)
    own = folded.of[recording.trace.stack_id[events]]
    called_at = np.zeros_like(own)
    if not own.all():
        lives = lifetimes(recording)
        called_at = calls_of_backward(recording, lives, folded.of[lives.stack_id], events)
    found = []
    for event, line, call in zip(events.tolist(), own.tolist(), called_at.tolist(), strict=True):
        frame = folded.stacks.frame(line or call) if line or call else None
        is_in_backward = bool(call and not line)
        found.append(FailurePlace(*step_and_phase_at(recording, event + 1), frame, is_in_backward))
    return tuple(found)


def findings(failures: Failures) -> list[Finding]:
    """Return a finding for each of the last failures."""
    rows = range(len(failures))[-_MOST_FINDINGS:]
    return [_finding(failures, row) for row in rows]


def _finding(failures: Failures, row: int) -> Finding:
    at = failures.where[row]
    evidence = {name.removesuffix("_bytes"): int(column[row]) for name, column in failures.columns()}
    moment = "" if at.step is None else f" at step {at.step}"
    moment += "" if at.phase is None else f" in {format_name(at.phase)}"
    free = evidence["device_free"]
    device = "" if free < 0 else f", {format_bytes(free)} free on the device"
    largest = evidence["largest_free"]
    block = "" if largest < 0 else f", {format_bytes(largest)} in the largest free block"
    totals = (
        "; what was allocated is not known"
        if evidence["allocated"] < 0
        else f", with {format_bytes(evidence['allocated'])} allocated of "
        f"{format_bytes(evidence['reserved'])} reserved"
    )
    end, tried = ("would run ", "would try") if failures.is_predicted else ("", "tried")
    request = f"{tried} to allocate {format_bytes(evidence['size'])}"
    claim = f"{end}out of memory{moment}: {request}{totals}{block}{device}"
    room, held = failures.rooms[row], failures.holders[row - len(failures)]
    why = None if room is None else cause(room)
    evidence |= {"in_backward": True} if at.is_in_backward else {}
    evidence |= {f"in_use_{each.name.replace(' ', '_')}": each.n_bytes for each in held.by_category}
    return Finding(
        FindingKind.OOM,
        Severity.ERROR,
        claim if room is None or why is None else f"{claim}. {_because(why, room, failures)}{held.making[0]}",
        cause=why and why.value,
        advice=held.making[1] or _advice(why, room, held, failures),
        **placed(at.frame),
        module=failures.modules[row] or None,
        n_bytes=evidence["size"],
        evidence=evidence | (room.figures() if room else {}),
    )


def _advice(why: Cause | None, room: Room | None, held: InUse, failures: Failures) -> str | None:
    if why in (Cause.CAPACITY, Cause.LIMIT) and held.words:
        raised = "Raise the fraction, or shrink" if why is Cause.LIMIT else "Shrink"
        return f"{raised} what is allocated at that moment: {held.words}"
    if why is Cause.LARGER_STEP and room is not None and not room.is_of_larger_inputs:
        return f"{_SPECIAL['larger']}: {held.words}"
    if why is Cause.FRAGMENTATION and room is not None and room.is_expandable:
        return _SPECIAL["expandable"]
    is_blind = room is None or min(room.device_free_bytes, room.reserved_bytes) < 0
    if why is None or (why is Cause.UNKNOWN and is_blind):
        return None
    text = _WORDS[why][1].format(tool=_TOOLS.get(failures.device_kind, "nvidia-smi"))
    if failures.has_single_events or why not in _TO_RECORD:
        return text
    return f"{text}{_TO_RECORD[why]}" if why is Cause.CAPACITY else _TO_RECORD[why]


def _because(why: Cause, room: Room, failures: Failures) -> str:
    """Return the cause in one sentence, with its figure."""
    were = "would be lacking" if failures.is_predicted else "were lacking"
    unsaid = "How much was lacking is not recorded"
    lacking = f"{format_bytes(room.lacking_bytes)} {were}" if room.lacking_bytes > 0 else unsaid
    if room.is_limited:
        limit = f"the limit of {format_bytes(room.limit_bytes)} that set_per_process_memory_fraction sets"
        end = "," if _WORDS[why][0].startswith("{lacking} ") else ""
        lacking = f"{format_bytes(room.over_limit_bytes)} {were} below {limit}{end}"
    share = getattr(room, f"{_WORDS[why][2]}_bytes")
    if why is Cause.UNKNOWN and min(room.device_free_bytes, room.reserved_bytes) >= 0:
        return _SPECIAL["room"].format(free=format_bytes(room.device_free_bytes))
    other_size = "requests above 1 MiB" if room.need_bytes <= SMALL_LIMIT else "requests up to 1 MiB"
    whole = "all of" if room.from_driver_bytes > room.capacity_bytes else "half of"
    words = {"lacking": lacking, "share": format_bytes(share), "other_size": other_size, "whole": whole}
    segment = format_bytes(room.from_driver_bytes)
    is_larger = room.from_driver_bytes > room.need_bytes and segment != words["share"]
    words["segment"] = _SPECIAL["segment"].format(segment) if is_larger else ""
    sizes = [format_bytes(n_bytes) for n_bytes in (room.inputs_bytes, room.inputs_before_bytes)]
    words["inputs"] = _SPECIAL["inputs"].format(*sizes) if room.is_of_larger_inputs else ""
    is_partly_seen = room.unattributed_bytes < room.outside_bytes
    unattributed = _SPECIAL["unattributed"].format(format_bytes(room.unattributed_bytes))
    words["unattributed"] = unattributed if is_partly_seen else ""
    if why is Cause.UNKNOWN and room.reserved_bytes < 0:
        return _SPECIAL["cut"]
    sentence = _WORDS[why][0].format(**words)
    return sentence + (_beside(room, failures) if why is Cause.CAPACITY else "")


def _beside(room: Room, failures: Failures) -> str:
    """Return a further clause about a full device; '' if there is none."""
    if 0 < room.capacity_bytes < room.allocated_bytes:
        capacity = format_bytes(room.capacity_bytes)
        return f", more than its {capacity}: the driver keeps the rest in the host's memory"
    beside = _SPECIAL["context" if failures.is_predicted else "beside"]
    return beside.format(format_bytes(room.beside_bytes)) if room.beside_bytes else ""


_TEXTS = words(__file__, "advice.tsv", "making")
_COUNTS = {1: "one value", 2: "two values", 3: "three values"}


def making(recording: Recording, found: Allocations, event: int, gradients: Array) -> tuple[str, str]:
    """Return how far an optimizer is with what it makes for each of *gradients*, and what takes less."""
    made = being_made(recording, found, event, gradients)
    if made is None:
        return "", ""
    name, n_values, done, left, is_state = made
    of_eight = f".{name}8bit" if name in WITH_8_BITS else ""
    # Where even one moment of all parameters is more than what was there, that would fail again.
    one_moment = ", with one moment (Lion)" if "Adam" in name and done >= left else ""
    figures = [format_bytes(n_bytes) for n_bytes in (done, done + left, left)]
    values = _COUNTS.get(n_values, f"{n_values} values")
    claim = _TEXTS["claim"].format(name, "its state, " * is_state + values, *figures)
    return claim, _TEXTS["advice"].format(of_eight, one_moment)


ANALYSIS = asking("Did an allocation fail, and what was there then?", oom, findings)
