"""The answer of ``fit``, and the verdict on one device that follows from a replay and what was recorded."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from vramscope.analysis.batch_fit import BatchFit
from vramscope.analysis.settings_advice import SAME, Candidate, SettingsAdvice, comes_to
from vramscope.analysis.strategies import Strategies
from vramscope.analysis.what_if import ReplayResult
from vramscope.model.cards import Card
from vramscope.model.prediction import Prediction
from vramscope.units import format_bytes, format_share


class Effect(str, Enum):
    """How a change moves the peak of allocated bytes."""

    SAVES = "saves"
    RAISES = "raises"
    NOTHING = "no effect"
    UNKNOWN = "cannot tell"
    """The ranges of both runs overlap, or nothing bounds them."""


@dataclass(frozen=True, slots=True)
class DryPeak:
    """What one dry run needed."""

    allocated_bytes: int
    """Lower bound of the peak of allocated bytes."""
    most_bytes: int | None
    """Upper bound of the peak of allocated bytes; None if nothing bounds it."""
    reserved_bytes: int
    """Lower bound of the peak of reserved bytes."""
    reached_allocated_bytes: int
    """Peak of allocated bytes that the dry run itself reached, between the bounds."""
    reached_reserved_bytes: int
    fits: bool | None
    """Whether it fits the requested device; None if not known or not asked."""
    certainty: str
    """``checked``, ``estimate`` or ``cannot_tell``."""
    reason: str = ""
    """The gravest reason why it is not ``checked``."""

    @property
    def is_close(self) -> bool:
        """Whether only a run on the device itself decides: the allocator may release its cache in time."""
        return self.fits is None and self.most_bytes is not None


@dataclass(frozen=True, slots=True)
class Rerun:
    """One what-if that was run dry, or could not be."""

    name: str
    how: str
    """What the author of the program would write."""
    peak: DryPeak | None = None
    """None if it could not be run; ``problem`` then says why."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reruns:
    """All what-ifs of one program."""

    command: str
    """The command that was run dry."""
    card: str
    capacity_bytes: int
    """Bytes of the device that ``fits`` is about."""
    plain: DryPeak | None = None
    """The program as it is, run dry; None if that is not possible."""
    rows: tuple[Rerun, ...] = ()
    problem: str = ""
    """Why nothing could be run dry; '' otherwise."""
    n_wanted: int = 0
    """Number of what-ifs; ``rows`` has fewer if the caller stopped them."""

    def effect(self, row: Rerun) -> Effect:
        """Return how *row* moves the peak of allocated bytes; a sign that may be wrong is not given."""
        before, after = self.plain, row.peak
        if before is None or after is None or before.most_bytes is None or after.most_bytes is None:
            return Effect.UNKNOWN
        if after.most_bytes < before.allocated_bytes:
            return Effect.SAVES
        if after.allocated_bytes > before.most_bytes:
            return Effect.RAISES
        is_same = before.allocated_bytes == before.most_bytes == after.allocated_bytes == after.most_bytes
        return Effect.NOTHING if is_same else Effect.UNKNOWN

    def saved_bytes(self, row: Rerun) -> int | None:
        """Return the bytes by which the peak falls, negative if it rises; None if the sign is not known."""
        if self.plain is None or row.peak is None or self.effect(row) is Effect.UNKNOWN:
            return None
        return self.plain.reached_allocated_bytes - row.peak.reached_allocated_bytes

    def answers(self, strategy: str) -> bool:
        """Return whether a what-if says what *strategy* does, so that nothing has to be estimated."""
        known = [row for row in self.rows if self.effect(row) is not Effect.UNKNOWN]
        return any(strategy == row.name or strategy.startswith(f"{row.name} ") for row in known)


def differs_from_recorded(found: Reruns, recorded_bytes: int) -> float | None:
    """Return by which share the dry run of the program as it is differs from the recorded peak."""
    if found.plain is None or not recorded_bytes:
        return None
    return found.plain.allocated_bytes / recorded_bytes - 1


UNKNOWN_OUTSIDE_BYTES = 600 << 20
"""Bytes assumed for CUDA's context and libraries if not recorded: 300 to 600 MiB are usual."""


class FitVerdict(str, Enum):
    """Whether the recorded program fits a device."""

    FITS = "fits"
    TIGHT = "tight"
    """The program fits, but the allocator has to release its whole cache at least once."""
    TOO_SMALL = "too small"
    UNKNOWN = "unknown"
    """The recording does not decide it; ``Placed.reason`` says why."""

    @classmethod
    def of(cls, fits: bool | None) -> "FitVerdict":
        """Return the verdict that a dry run has given."""
        return {True: cls.FITS, False: cls.TOO_SMALL, None: cls.UNKNOWN}[fits]

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
    """Why the program's further need is not known, as a clause; '' if the recording is complete."""
    is_peak_counted: bool = False
    """Whether ``ending`` is no more than steps without events, of which torch's counters have the peak."""
    growth: str = ""
    """What grows with every step, as a clause: a longer run needs more; '' if nothing is known to."""
    until: str = ""
    """For a recording that ends too early: the moment up to which it counts, such as ``so far``."""
    is_exact: bool = True
    """Whether the recording has all events up to its end."""
    has_ended_short: bool = False
    """Whether the recording ends with an allocation that failed."""
    n_failed: int = 0
    """How many allocations failed when it was recorded."""
    has_outgrown_device: bool = False
    """Whether the simulated device was full, and the recording went on without a limit."""
    cached_before_bytes: int = 0
    """Bytes that were reserved and free when the recording began; how that came to be is not in it."""
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
    prediction: Prediction | None = None
    """The answer that a dry run stored: it decides what the program needs as it is. None for other runs."""
    moments: dict[int, str] = field(default_factory=dict)
    """Phrase for each event at which a replay failed: ``at step 3 in forward``."""

    @property
    def chosen(self) -> Candidate | None:
        """The requested setting, else the advised one; None if there is neither."""
        if self.setting is not None:
            return self.setting
        return self.settings.advised.candidate if self.settings and self.settings.advised else None

    @property
    def is_open(self) -> bool:
        """Whether the program may need more than was recorded: the recording lacks a part that counts."""
        return bool(self.ending) and not self.is_peak_counted

    @property
    def is_reproduced(self) -> bool:
        """Whether the replay under the recorded circumstances reserves what was recorded: ``comes_to``."""
        return comes_to(self.as_recorded, self.recorded_peak_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether the program fits the first device with its recorded settings; None if not known."""
        if self.placed:
            return self.placed[0].verdict.fits
        ran_out = self.is_exact and self.as_recorded is not None and not self.as_recorded.fits
        return False if ran_out else None

    @property
    def most_bytes(self) -> tuple[int, int]:
        """The most reserved and allocated bytes without a limit; as recorded until all is replayed."""
        if self.prediction is not None:
            need = self.prediction.need
            doubt = need.doubt_bytes or 0 if need.is_whole else 0
            return need.reserved_bytes + doubt, need.allocated_bytes + doubt
        if self.without_limit is None or self.is_peak_counted:
            return self.recorded_peak_bytes, self.recorded_allocated_bytes
        return self.without_limit.peak_reserved_bytes, self.without_limit.peak_allocated_bytes

    def room_on(self, target: Target) -> int:
        """Return the bytes that the allocator can reserve on *target*: at least 1."""
        total = target.total_bytes
        is_bare = self.is_simulated and target.is_own
        # A card is larger than a context: so small a capacity means the allocator's own.
        is_bare |= not self.is_outside_measured and total <= self.outside_bytes
        room = total if is_bare else total - self.outside_bytes
        if self.limit_bytes is not None and self.own_total_bytes:
            room = min(room, total * self.limit_bytes // self.own_total_bytes)
        # The recorded device held the recorded peak, whatever is assumed about the rest.
        held = self.recorded_peak_bytes if target.is_own and not self.has_outgrown_device else 1
        return max(room, held)

    def allowed_on(self, target: Target) -> int | None:
        """Return what the program's own fraction leaves of *target*; None where it takes nothing."""
        room = self.room_on(target)
        return room if room < replace(self, limit_bytes=None).room_on(target) else None

    @property
    def limit_words(self) -> str:
        """A sentence on the program's own fraction, by which each card is judged; '' where it sets none."""
        if self.limit_bytes is None or not self.own_total_bytes:
            return ""
        limit = f"{format_bytes(self.limit_bytes)}, {format_share(self.limit_bytes, self.own_total_bytes)}"
        return (
            f"the program limits itself to {limit} of its device (set_per_process_memory_fraction), "
            "and each card is judged by that share of it: a greater fraction gives it more"
        )

    def has_failed_on(self, target: Target) -> bool:
        """Return whether memory ran out on a device as large as *target* when it was recorded."""
        return bool(self.n_failed) and target.total_bytes <= self.own_total_bytes

    def judged(self, target: Target, outcome: ReplayResult) -> tuple[FitVerdict, str]:
        """Return the verdict on a replay on *target*, and the reason if it is not known.

        The replay is of the recorded settings: a card on which the run failed is none on which it fits.
        """
        verdict, reason = self._replayed_verdict(target, outcome)
        if verdict.fits and self.has_failed_on(target):
            if self.has_outgrown_device:
                return FitVerdict.TOO_SMALL, ""
            n_times = "once" if self.n_failed == 1 else f"{self.n_failed:,} times"
            return (
                FitVerdict.UNKNOWN,
                f"memory ran out {n_times} on a device of that size, and the run went on",
            )
        return verdict, reason

    def _replayed_verdict(self, target: Target, outcome: ReplayResult) -> tuple[FitVerdict, str]:
        room, recorded = self.room_on(target), self.recorded_peak_bytes
        if not outcome.fits:
            if not self.is_exact:
                return FitVerdict.UNKNOWN, self.ending
            if not self.ending and not self.is_reproduced and recorded <= room:
                return FitVerdict.FITS, ""  # the recorded program reserved no more, and went on
            return FitVerdict.TOO_SMALL, ""
        if self.ending:
            return FitVerdict.UNKNOWN, self.ending
        has_past = self.cached_before_bytes > SAME * recorded
        if room < recorded and (has_past or not self.is_reproduced):
            reached = format_bytes(outcome.peak_reserved_bytes)
            reserved = f"{format_bytes(recorded)} were reserved when it was recorded"
            return FitVerdict.UNKNOWN, f"{reserved}, of which the replay explains {reached}"
        return (FitVerdict.TIGHT if outcome.n_retries else FitVerdict.FITS), ""

    def judged_as_recorded(self, target: Target, plain: ReplayResult) -> tuple[FitVerdict, str]:
        """Return the verdict with the recorded settings, and the reason if it is not known."""
        verdict = self.recorded_verdict(target)
        if verdict is None:
            return self.judged(target, plain)
        is_open = verdict is FitVerdict.UNKNOWN
        return verdict, self.prediction.undecided if is_open and self.prediction is not None else ""

    def recorded_verdict(self, target: Target) -> FitVerdict | None:
        """Return the verdict with the recorded settings that needs no replay; None where only one decides.

        A dry run has answered it. Else a program that was never short reserves the same on any device with
        room for what it reserved. The tolerance is that of a replay that reproduces the recording, so that no
        replay contradicts it.
        """
        if self.prediction is not None:
            return FitVerdict.of(self.prediction.fits_on(target.total_bytes))
        room, recorded = self.room_on(target), self.recorded_peak_bytes
        if min(self.recorded_allocated_bytes, self.recorded_requested_bytes) > room:
            return FitVerdict.TOO_SMALL
        is_decided = recorded and not (self.is_open or self.has_run_short or self.has_failed_on(target))
        return FitVerdict.FITS if is_decided and room >= (1 + SAME) * recorded else None

    def verdict_by_bytes(self, target: Target, free: ReplayResult) -> FitVerdict | None:
        """Return the verdict on *target* that the peaks of *free* decide; None where they do not.

        *free* is a replay on a device without a limit.
        """
        room = self.room_on(target)
        if free.capacity_bytes is None and free.peak_reserved_bytes <= room:
            return self._verdict_of(target, free)
        if free.capacity_bytes is None and free.peak_allocated_bytes > room:
            return FitVerdict.TOO_SMALL
        return None

    def verdict_on(
        self, target: Target, free: ReplayResult, replayed: Callable[[], ReplayResult]
    ) -> FitVerdict:
        """Return the verdict on *target*; *replayed* is called only if the bytes alone do not decide.

        *free* is the replay under the same setting on a device without a limit.
        """
        return self.verdict_by_bytes(target, free) or self._verdict_of(target, replayed())

    def _verdict_of(self, target: Target, outcome: ReplayResult) -> FitVerdict:
        is_recorded = self.without_limit is None or outcome.settings == self.without_limit.settings
        return self.judged(target, outcome)[0] if is_recorded else self._replayed_verdict(target, outcome)[0]
