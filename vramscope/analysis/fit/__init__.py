"""What would fit: on which card, under which allocator setting, with which batch, with which strategy.

The command prints this answer and the dashboard draws it. It rests on a replay of the recorded requests
(``what_if``). A verdict is given only if the replay explains the recording, and the recording is complete
(``verdicts``). A card on which the run failed is none on which it fits, unless something changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vramscope.analysis import asking
from vramscope.analysis.batch_fit import BatchFit, batch_fit
from vramscope.analysis.fit.answer import UNKNOWN_OUTSIDE_BYTES, FitAnswer, Placed, Target
from vramscope.analysis.leaks import leaks
from vramscope.analysis.leaks.all_steps import rise_by_counters
from vramscope.analysis.recorded_settings import recorded_limit
from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.analysis.settings_advice import (
    Candidate,
    Play,
    SettingsAdvice,
    outside_bytes,
    recorded_capacity,
    replayed,
    reproduction,
    searched,
)
from vramscope.analysis.step_and_phase import step_and_phase_at
from vramscope.analysis.strategies import Strategies, strategies
from vramscope.analysis.timeline import timeline
from vramscope.analysis.verdicts import Verdict, why_not
from vramscope.analysis.verdicts.missing import Missing, Part, ended_short, missing_parts, until
from vramscope.analysis.what_if import ReplayResult, RequestSequence, device_total, request_sequence
from vramscope.analysis.what_if.earlier_state import cached_bytes
from vramscope.errors import UsageError
from vramscope.model.cards import CARDS, Card
from vramscope.model.codes import NoteCode
from vramscope.model.recording import Recording
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_name

BASIS = (
    "by replay of the recorded requests: a program that does something else under other settings is not "
    "foreseen, nor is the time that releases and mappings take"
)
NOT_KNOWN = "what would fit is not known"
"""How the reason begins where a source has too little for an answer."""
_UNANSWERABLE = (
    NoteCode.NO_LAYOUT,
    NoteCode.MADE_UP_SEGMENTS,
    NoteCode.MOMENTS_ONLY,
    NoteCode.TOTALS_ONLY,
    NoteCode.DRIVER_ONLY,
)
"""Codes of notes on sources without the allocator's requests; the note's text says what is missing."""


@dataclass(frozen=True, slots=True)
class Question:
    """The questions that ``fit`` answers, and their options."""

    targets: tuple[Target, ...] = ()
    """Devices; the recorded one where empty."""
    setting: Candidate | None = None
    """The only allocator setting to try; every usual one where None."""
    others: tuple[Recording, ...] = ()
    """Runs of the same program with other batches."""
    batch_sizes: tuple[tuple[int, ...], ...] | None = None
    """Batch size of each step of each recording; if None, bytes of input count as size."""
    n_gpus: int = 8
    """Number of GPUs that sharding strategies distribute over."""
    has_own_target: bool = True
    """Whether the recorded device counts as a target if none is given."""
    is_brief: bool = False
    """Whether only the verdicts are wanted: no search for settings, no batches, no strategies."""


@dataclass(frozen=True, slots=True)
class FitProgress:
    """Callbacks that report the progress of ``fit``."""

    stage: Callable[[str], None] = lambda _: None
    """Receives the name of each stage when it begins."""
    play: Play = map
    """Runs the trials of settings; it may stop early."""
    known: Callable[["FitAnswer"], None] = lambda _: None
    """Receives the answer as far as it is known: before the first replay, and after each stage."""


def fit(
    recording: Recording, question: Question | None = None, progress: FitProgress | None = None
) -> FitAnswer:
    """Answer what would fit, for one recording: some ten replays of 2 to 3 s per million events.

    Parameters
    ----------
    recording
        One device of one rank.
    question
        Cards, settings, batches and strategies to answer for; the usual ones if None.
    progress
        Callbacks that report the progress.

    Raises
    ------
    UsageError
        If a size, a setting or a number of devices is impossible.
    """
    question, progress = question or Question(), progress or FitProgress()
    problem = unanswerable(recording)
    ids = recording.process.rank, recording.device.index
    if problem:
        return FitAnswer(*ids, problem=problem)
    return _Answering(recording, recorded_answer(recording, question.setting), question, progress).answer()


def recorded_answer(recording: Recording, setting: Candidate | None = None) -> FitAnswer:
    """Return what the recording alone says, before any replay."""
    measured, totals = outside_bytes(recording), timeline(recording)
    predicted = recording.prediction
    outside = UNKNOWN_OUTSIDE_BYTES if predicted is None else predicted.context_bytes
    missing = missing_parts(recording)
    counted = _counted_peaks(recording, missing)
    has_outgrown = any(note.code == NoteCode.SIMULATED_OOM for note in recording.notes)
    return FitAnswer(
        recording.process.rank,
        recording.device.index,
        recorded_peak_bytes=int(totals.reserved_bytes.max(initial=counted[0])),
        recorded_allocated_bytes=int(totals.allocated_bytes.max(initial=counted[1])),
        recorded_requested_bytes=int(totals.requested_bytes.max(initial=0)),
        has_run_short=recorded_capacity(recording) is not None,
        outside_bytes=outside if measured is None else measured,
        is_outside_measured=measured is not None,
        limit_bytes=recorded_limit(recording),
        own_total_bytes=recording.device.total_bytes,
        is_simulated=is_simulated(recording),
        ending=why_not(missing, Verdict.FIT),
        is_peak_counted=any(counted),
        until=until(missing),
        is_exact=not any(each.part is Part.EVENTS for each in missing),
        has_ended_short=ended_short(recording),
        n_failed=int((recording.trace.action == Action.OOM).sum()) + has_outgrown,
        has_outgrown_device=has_outgrown,
        cached_before_bytes=cached_bytes(recording.initial),
        setting=setting,
        prediction=predicted,
    )


def _counted_peaks(recording: Recording, missing: Sequence[Missing]) -> tuple[int, int]:
    """Return the peaks of reserved and allocated bytes by torch's counters, where they are of every step.

    Both are 0 where more is missing than the events of steps, or where torch counts a higher peak from
    before the recording, which may be the program's as well. The simulated device counts none before.
    """
    if [each.code for each in missing] not in ([NoteCode.SOME_STEPS], [NoteCode.COUNTERS_ONLY]):
        return 0, 0
    peaks, of_process = sampled_peaks(recording), recording.counters.reserved_peak_bytes.max(initial=0)
    is_whole = peaks.is_exact and (is_simulated(recording) or peaks.reserved_bytes == of_process)
    return (peaks.reserved_bytes, peaks.allocated_bytes) if is_whole else (0, 0)


class _Answering:
    """The stages of one answer: first those that need no replay of the whole run, which are shown at once."""

    def __init__(
        self, recording: Recording, base: FitAnswer, question: Question, progress: FitProgress
    ) -> None:
        self._recording = recording
        self._base = base
        self._question = question
        self._progress = progress
        self._program: RequestSequence
        own = own_target(recording) if question.has_own_target else ()
        self._targets = question.targets or own

    def answer(self) -> FitAnswer:
        if self._question.is_brief:
            self._replay()
            return self._with_moments(replace(self._base, placed=tuple(map(self._placed, self._targets))))
        self._learn()
        self._progress.stage("batch")
        self._learn(batch=self._batch(), growth=_growth(self._recording))
        self._progress.stage("strategies")
        self._learn(strategies=self._strategies())
        self._replay()
        self._progress.stage("settings")
        self._learn(settings=None if self._question.setting else self._search())
        self._progress.stage("cards")
        placed = tuple(map(self._placed, self._targets))
        chosen = self._base.chosen
        as_asked = None
        if self._question.setting is not None:
            as_asked = placed[0].chosen if placed else self._without_limit(self._question.setting)
        return self._with_moments(
            replace(
                self._base,
                placed=placed,
                as_asked=as_asked,
                smallest_card=self._smallest(None),
                smallest_card_chosen=self._smallest(chosen) if chosen else None,
            )
        )

    def _learn(self, **found: Any) -> None:
        """Add what was found to the answer, and report the answer so far."""
        self._base = replace(self._base, **found)
        self._progress.known(self._base)

    def _replay(self) -> None:
        self._progress.stage("replaying")
        self._program = request_sequence(self._recording)
        as_recorded, without_limit = reproduction(self._recording, self._program)
        self._learn(as_recorded=as_recorded, without_limit=without_limit)

    def _batch(self) -> BatchFit:
        if not self._base.is_exact:
            return BatchFit("", problem=self._base.ending)
        return batch_fit(self._recording, self._question.others, self._question.batch_sizes)

    def _strategies(self) -> Strategies:
        found = strategies(self._recording, self._question.n_gpus)
        # What does not lower the peak of a part may lower that of the whole.
        return found if self._base.is_exact else replace(found, without_effect=())

    def _search(self) -> SettingsAdvice:
        room: tuple[int | None, int | None] = (None, None)
        if self._targets:
            target = self._targets[0]
            room = self._base.room_on(target), target.total_bytes
        return searched(self._recording, room, self._progress.play)

    def _replayed(self, candidate: Candidate | None, target: Target) -> ReplayResult:
        room = self._base.room_on(target)
        whole = device_total(self._recording, room, target.total_bytes)
        return replayed(self._program, self._recording, (room, whole), candidate)

    def _placed(self, target: Target) -> Placed:
        """Return the result on *target*; the search already has both replays for the first target."""
        found, chosen = self._base.settings, self._base.chosen
        if found is not None and target == self._targets[0]:
            plain, other = found.base, found.advised.outcome if found.advised else None
        else:
            plain = self._replayed(None, target)
            other = self._replayed(chosen, target) if chosen else None
        verdict, reason = self._base.judged_as_recorded(target, plain)
        return Placed(target, self._base.room_on(target), plain, verdict, reason, other)

    def _without_limit(self, candidate: Candidate | None) -> ReplayResult:
        whole = device_total(self._recording, None, None)
        return replayed(self._program, self._recording, (None, whole), candidate)

    def _smallest(self, candidate: Candidate | None) -> Card | None:
        """Return the smallest card that surely fits; a card is replayed only if bytes do not decide."""
        free = self._base.without_limit
        if candidate is not None or free is None:
            free = self._without_limit(candidate)
        for card in CARDS:
            target = Target(card.label, card.total_bytes)
            verdict = self._base.recorded_verdict(target) if candidate is None else None
            play = partial(self._replayed, candidate, target)
            if (verdict or self._base.verdict_on(target, free, play)).fits:
                return card
        return None

    def _with_moments(self, answer: FitAnswer) -> FitAnswer:
        outcomes = [
            answer.as_recorded,
            *(each for card in answer.placed for each in (card.plain, card.chosen)),
        ]
        if answer.settings:
            outcomes += [answer.settings.base, *(trial.outcome for trial in answer.settings.trials)]
        events = {each.failed_at for each in outcomes if each is not None and each.failed_at is not None}
        return replace(answer, moments={event: moment(self._recording, event) for event in sorted(events)})


def _growth(recording: Recording) -> str:
    found = leaks(recording)
    rate = sum(each.bytes_per_step for each in (*found.leaks, found.batch) if each is not None)
    rate += found.cache_bytes_per_step + found.pool_bytes_per_step
    if not rate and any(each.code == NoteCode.SOME_STEPS for each in missing_parts(recording)):
        rate = rise_by_counters(recording)
    more = f"{format_bytes(round(rate))} more with every step (vramscope leaks)"
    return f"{more}, so a longer run needs more than is said here" if rate else ""


def unanswerable(recording: Recording) -> str:
    """Return why there is no answer for *recording*, as one clause; '' if there is one."""
    if not len(recording.trace):
        n_bytes = counted_reserved_bytes(recording)
        enough = f"; {format_bytes(n_bytes)} for the allocator are enough for it as it is" if n_bytes else ""
        return f"it has no events, so there is nothing to replay{enough}"
    codes = {note.code: note.text for note in recording.notes}
    if recording.device.kind == "cpu" or NoteCode.HOST_MEMORY in codes:
        return "this is the memory of a CPU: `fit` is about GPUs and does not apply"
    code = next((code for code in _UNANSWERABLE if code in codes), None)
    return "" if code is None else f"{NOT_KNOWN}: {codes[code]}"


def counted_reserved_bytes(recording: Recording) -> int:
    """Return the most that a whole run without events reserved, by torch's counters; 0 where not known."""
    return _counted_peaks(recording, missing_parts(recording))[0]


def own_target(recording: Recording) -> tuple[Target, ...]:
    """Return the recorded device as a target; empty if its size is not known."""
    total = recording.device.total_bytes
    return (Target(f"this device of {format_bytes(total)}", total, is_own=True),) if total else ()


def is_simulated(recording: Recording) -> bool:
    """Return whether the device is simulated, so that nothing lies outside of its allocator.

    A dry run has the size of a real card, of which CUDA takes its part.
    """
    return "simulated" in (recording.device.kind, recording.source)


def moment(recording: Recording, event: int) -> str:
    """Return where the program was at *event*, as a phrase such as ``at step 3 in forward``."""
    if event < 0:
        return "before the first event"
    step, phase = step_and_phase_at(recording, event + 1)
    found = f"at event {event:,}" if step is None else f"at step {step}"
    return f"{found} in {format_name(phase)}" if phase else found


def fullest_first(recordings: Sequence[Recording]) -> list[Recording]:
    """Return *recordings* by interest: those that ran out of memory first, then by peak reserved bytes."""

    def rank(recording: Recording) -> tuple[bool, bool, int]:
        reserved = int(timeline(recording).reserved_bytes.max(initial=0)) if len(recording.trace) else 0
        return not unanswerable(recording), bool((recording.trace.action == Action.OOM).any()), reserved

    return sorted(recordings, key=rank, reverse=True)


def fit_all(
    recordings: Iterable[Recording], question: Question, progress: FitProgress
) -> Iterator[FitAnswer]:
    """Yield an answer for every device: the whole answer for the fullest, only verdicts for the others."""
    for number, recording in enumerate(fullest_first(list(recordings))):
        own = question if not number else replace(question, is_brief=True, others=(), batch_sizes=None)
        yield fit(recording, own, progress)


def checked_sizes(sizes: Sequence[Sequence[int]], recordings: Sequence[Recording]) -> None:
    """Raise UsageError unless each run has one batch size, or one for each of its steps."""
    if len(sizes) != len(recordings):
        raise UsageError("--batch: sizes of one run after the other, with a semicolon between runs")
    for own, recording in zip(sizes, recordings, strict=True):
        if len(own) not in (1, len(recording.steps)):
            raise UsageError(f"--batch: {len(own)} sizes for {len(recording.steps)} steps; or give one")


ANALYSIS = asking("What would fit: which card, setting, batch and strategy?", fit)
