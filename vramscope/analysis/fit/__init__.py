"""What would fit: on which card, under which allocator setting, with which batch, with which strategy.

The command prints this answer and the dashboard draws it. It rests on a replay of the recorded requests
(``what_if``). A verdict is given only if the replay explains the recording. Nothing is certain to fit if a
run stopped because memory ran out, or if the replay reserves less than was recorded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from vramscope.analysis import Analysis
from vramscope.analysis.batch_fit import BatchFit, batch_fit
from vramscope.analysis.ending import ended_short
from vramscope.analysis.fit.reruns import Reruns
from vramscope.analysis.process_limit import recorded_limit
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
from vramscope.analysis.what_if import (
    Replay,
    ReplayResult,
    RequestSequence,
    device_total,
    replay,
    request_sequence,
)
from vramscope.errors import UsageError
from vramscope.model.cards import CARDS, Card
from vramscope.model.codes import NoteCode
from vramscope.model.recording import Recording
from vramscope.model.trace import Action
from vramscope.units import format_bytes, format_name

UNKNOWN_OUTSIDE_BYTES = 600 << 20
"""Bytes assumed for CUDA's context and libraries if not recorded: 300 to 600 MiB are usual."""
BASIS = (
    "by replay of the recorded requests: a program that does something else under other settings is not "
    "foreseen, nor is the time that releases and mappings take"
)
_UNANSWERABLE = ("no_layout", "made_up_segments", "moments_only", "totals_only", "driver_only")
"""Codes of notes on sources without the allocator's requests; the note's text says what is missing."""
_REPRODUCED = 0.02
"""Largest difference between the replay and the recorded reserved bytes, as a share of these."""
_FEWEST_STEPS = 2
"""Completed steps after which a killed run is assumed to have reached its peak."""


class FitVerdict(str, Enum):
    """Whether the recorded program fits a device."""

    FITS = "fits"
    TIGHT = "tight"
    """The program fits, but the allocator has to release its whole cache at least once."""
    TOO_SMALL = "too small"
    UNKNOWN = "unknown"
    """The recording does not decide it; ``Placed.reason`` says why."""

    @property
    def fits(self) -> bool | None:
        """Whether the program fits; None where that is not known."""
        return None if self is FitVerdict.UNKNOWN else self is not FitVerdict.TOO_SMALL


@dataclass(frozen=True, slots=True)
class Target:
    """A device to ask about."""

    label: str
    """Phrase for a sentence: ``a card of 24.0 GiB``."""
    total_bytes: int
    """Bytes that torch finds on it."""
    is_own: bool = False
    """Whether it is the device of the recording."""


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
    run: Replay = replay
    """Performs every replay; it may use another process."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The result of the program on one device."""

    target: Target
    room_bytes: int
    """Bytes that the allocator can reserve there."""
    plain: ReplayResult
    """Replay with the recorded settings."""
    verdict: FitVerdict
    reason: str = ""
    """Why the verdict is not known; '' if it is known."""
    chosen: ReplayResult | None = None
    """Replay with the requested setting, else the advised one; None if there is neither."""


@dataclass(frozen=True, slots=True)
class FitAnswer:
    """The whole answer of ``fit`` for one recording."""

    rank: int
    """Rank of the recorded process."""
    device: int
    """Index of the recorded device."""
    problem: str = ""
    """Why there is no answer at all; '' if there is one."""
    recorded_peak_bytes: int = 0
    """The most reserved bytes, as recorded."""
    recorded_allocated_bytes: int = 0
    """The most allocated bytes, as recorded."""
    recorded_requested_bytes: int = 0
    """The most requested bytes, as recorded."""
    has_run_short: bool = False
    """Whether the recorded program ran short of memory, so that it may need more than was recorded."""
    outside_bytes: int = UNKNOWN_OUTSIDE_BYTES
    """Bytes of a card that the allocator cannot reserve: CUDA's context and libraries."""
    is_outside_measured: bool = False
    """Whether ``outside_bytes`` is measured; else it is an assumption."""
    limit_bytes: int | None = None
    """Bytes that ``set_per_process_memory_fraction`` allowed the recorded process."""
    own_total_bytes: int = 0
    """Size of the recorded device in bytes; 0 if not known."""
    is_simulated: bool = False
    """Whether the recorded device is simulated."""
    ending: str = ""
    """Why the program's further need is not known, as a clause; '' if the program ended by itself."""
    as_recorded: ReplayResult | None = None
    """Replay under the recorded circumstances."""
    without_limit: ReplayResult | None = None
    """Replay on a device without a limit."""
    setting: Candidate | None = None
    """The requested setting."""
    settings: SettingsAdvice | None = None
    """The search for a setting; None if a setting was requested."""
    placed: tuple[Placed, ...] = ()
    """Result for each target device."""
    as_asked: ReplayResult | None = None
    """Replay with the requested setting: on the first device, or without a limit if there is none."""
    smallest_card: Card | None = None
    """The smallest card that surely fits with the recorded settings."""
    smallest_card_chosen: Card | None = None
    """The smallest card that surely fits with ``chosen``."""
    batch: BatchFit | None = None
    """Needs of a step with other batch sizes."""
    strategies: Strategies | None = None
    """Strategies that lower the peak."""
    reruns: Reruns | None = None
    """What-ifs that were run dry, where that was requested."""
    moments: dict[int, str] = field(default_factory=dict)
    """Phrase for each event at which a replay failed: ``at step 3 in forward``."""

    @property
    def chosen(self) -> Candidate | None:
        """The requested setting, else the advised one; None if there is neither."""
        if self.setting is not None:
            return self.setting
        return self.settings.advised.candidate if self.settings and self.settings.advised else None

    @property
    def is_reproduced(self) -> bool:
        """Whether the replay under the recorded circumstances reserves what was recorded, within 2 %.

        True where the recording says nothing about reserved bytes.
        """
        found = 0 if self.as_recorded is None else self.as_recorded.peak_reserved_bytes
        return (
            not self.recorded_peak_bytes
            or abs(found - self.recorded_peak_bytes) <= _REPRODUCED * self.recorded_peak_bytes
        )

    @property
    def fits(self) -> bool | None:
        """Whether the program fits the first device with its recorded settings; None if not known."""
        if self.placed:
            return self.placed[0].verdict.fits
        ran_out = self.as_recorded is not None and not self.as_recorded.fits
        return False if ran_out else None

    def room_on(self, target: Target) -> int:
        """Return the bytes that the allocator can reserve on *target*: at least 1."""
        total = target.total_bytes
        is_bare = self.is_simulated and target.is_own
        # A card is larger than a context: so small a capacity means the allocator's own.
        is_bare |= not self.is_outside_measured and total <= self.outside_bytes
        room = total if is_bare else total - self.outside_bytes
        if self.limit_bytes is not None and self.own_total_bytes:
            room = min(room, round(total * self.limit_bytes / self.own_total_bytes))
        # The recorded device held the recorded peak, whatever is assumed about the rest.
        return max(room, self.recorded_peak_bytes if target.is_own else 1)

    def judged(self, target: Target, outcome: ReplayResult) -> tuple[FitVerdict, str]:
        """Return the verdict on a replay on *target*, and the reason if it is not known."""
        room, recorded = self.room_on(target), self.recorded_peak_bytes
        is_less = not self.is_reproduced and room < recorded
        if not outcome.fits:
            if not self.ending and not self.is_reproduced and recorded <= room:
                return FitVerdict.FITS, ""  # the recorded program reserved no more, and went on
            return FitVerdict.TOO_SMALL, ""
        if self.ending:
            return FitVerdict.UNKNOWN, self.ending
        if is_less:
            reached = format_bytes(outcome.peak_reserved_bytes)
            reserved = f"{format_bytes(recorded)} were reserved when it was recorded"
            return FitVerdict.UNKNOWN, f"{reserved}, of which the replay explains {reached}"
        return (FitVerdict.TIGHT if outcome.n_retries else FitVerdict.FITS), ""

    def recorded_word(self, target: Target) -> FitVerdict | None:
        """Return the verdict with the recorded settings that needs no replay; None where only one decides.

        A program that was never short reserves the same on any device with room for what it reserved. The
        tolerance is that of a replay that reproduces the recording, so that no replay contradicts it.
        """
        room, recorded = self.room_on(target), self.recorded_peak_bytes
        if min(self.recorded_allocated_bytes, self.recorded_requested_bytes) > room:
            return FitVerdict.TOO_SMALL
        is_decided = recorded and not self.ending and not self.has_run_short
        return FitVerdict.FITS if is_decided and room >= (1 + _REPRODUCED) * recorded else None

    def word_by_bytes(self, target: Target, free: ReplayResult) -> FitVerdict | None:
        """Return the verdict on *target* that the peaks of *free* decide; None where they do not.

        *free* is a replay on a device without a limit.
        """
        room = self.room_on(target)
        if free.capacity_bytes is None and free.peak_reserved_bytes <= room:
            return self.judged(target, free)[0]
        if free.capacity_bytes is None and free.peak_allocated_bytes > room:
            return FitVerdict.TOO_SMALL
        return None

    def word_on(self, target: Target, free: ReplayResult, replayed: Callable[[], ReplayResult]) -> FitVerdict:
        """Return the verdict on *target*; *replayed* is called only if the bytes alone do not decide.

        *free* is the replay under the same setting on a device without a limit.
        """
        return self.word_by_bytes(target, free) or self.judged(target, replayed())[0]


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

    Returns
    -------
    FitAnswer
        The verdicts, with every replay that they rest on; sizes in bytes.

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
    known = outside_bytes(recording)
    totals = timeline(recording)
    base = FitAnswer(
        *ids,
        recorded_peak_bytes=int(totals.reserved_bytes.max(initial=0)),
        recorded_allocated_bytes=int(totals.allocated_bytes.max(initial=0)),
        recorded_requested_bytes=int(totals.requested_bytes.max(initial=0)),
        has_run_short=recorded_capacity(recording) is not None,
        outside_bytes=UNKNOWN_OUTSIDE_BYTES if known is None else known,
        is_outside_measured=known is not None,
        limit_bytes=recorded_limit(recording),
        own_total_bytes=recording.device.total_bytes,
        is_simulated=is_simulated(recording),
        ending=ending(recording),
        setting=question.setting,
    )
    return _Answering(recording, base, question, progress).answer()


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
        self._learn(batch=batch_fit(self._recording, self._question.others, self._question.batch_sizes))
        self._progress.stage("strategies")
        self._learn(strategies=strategies(self._recording, self._question.n_gpus))
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
        as_recorded, without_limit = reproduction(self._recording, self._program, self._progress.run)
        self._learn(as_recorded=as_recorded, without_limit=without_limit)

    def _search(self) -> SettingsAdvice:
        room: tuple[int | None, int | None] = (None, None)
        if self._targets:
            target = self._targets[0]
            room = self._base.room_on(target), target.total_bytes
        return searched(self._recording, room, self._progress.play, self._progress.run)

    def _replayed(self, candidate: Candidate | None, target: Target) -> ReplayResult:
        room = self._base.room_on(target)
        whole = device_total(self._recording, room, target.total_bytes)
        return replayed(self._program, self._recording, (room, whole), candidate, self._progress.run)

    def _placed(self, target: Target) -> Placed:
        """Return the result on *target*; the search already has both replays for the first target."""
        found, chosen = self._base.settings, self._base.chosen
        if found is not None and target == self._targets[0]:
            plain, other = found.base, found.advised.outcome if found.advised else None
        else:
            plain = self._replayed(None, target)
            other = self._replayed(chosen, target) if chosen else None
        word = self._base.recorded_word(target)
        verdict, reason = self._base.judged(target, plain) if word is None else (word, "")
        return Placed(target, self._base.room_on(target), plain, verdict, reason, other)

    def _without_limit(self, candidate: Candidate | None) -> ReplayResult:
        whole = device_total(self._recording, None, None)
        return replayed(self._program, self._recording, (None, whole), candidate, self._progress.run)

    def _smallest(self, candidate: Candidate | None) -> Card | None:
        """Return the smallest card that surely fits; a card is replayed only if bytes do not decide."""
        free = self._base.without_limit
        if candidate is not None or free is None:
            free = self._without_limit(candidate)
        for card in CARDS:
            target = Target(card.label, card.total_bytes)
            word = self._base.recorded_word(target) if candidate is None else None
            word = word or self._base.word_on(target, free, partial(self._replayed, candidate, target))
            if word.fits:
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


def unanswerable(recording: Recording) -> str:
    """Return why there is no answer for *recording*, as one clause; '' if there is one."""
    if not len(recording.trace):
        return "it has no events, so there is nothing to replay"
    codes = {note.code: note.text for note in recording.notes}
    if recording.device.kind == "cpu" or NoteCode.HOST_MEMORY in codes:
        return "this is the memory of a CPU: `fit` is about GPUs and does not apply"
    code = next((code for code in _UNANSWERABLE if code in codes), None)
    return "" if code is None else f"what would fit is not known: {codes[code]}"


def own_target(recording: Recording) -> tuple[Target, ...]:
    """Return the recorded device as a target; empty if its size is not known."""
    total, limit = recording.device.total_bytes, recorded_limit(recording)
    limited = "" if limit is None else f" (the program limits itself to {format_bytes(limit)})"
    return (Target(f"this device of {format_bytes(total)}{limited}", total, is_own=True),) if total else ()


def is_simulated(recording: Recording) -> bool:
    """Return whether the device is simulated, so that nothing lies outside of its allocator.

    A dry run has the size of a real card, of which CUDA takes its part.
    """
    return "simulated" in (recording.device.kind, recording.source)


def ending(recording: Recording) -> str:
    """Return why the program's further need is not known, as a clause; '' if nothing is missing."""
    if ended_short(recording):
        return "the recording ends with an allocation that failed, and what comes after it is not known"
    has_died = any(note.code == NoteCode.DIED for note in recording.notes)
    if has_died and len(recording.steps) <= _FEWEST_STEPS:
        return "the process died while it was recorded, and what would have come after is not known"
    return ""


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


ANALYSIS = Analysis("fit", "What would fit: which card, setting, batch and strategy?", fit)
