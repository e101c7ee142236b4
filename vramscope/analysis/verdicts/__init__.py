"""The gate of verdicts: what of a recording is complete, and which verdicts that leaves.

A verdict says what is certain to hold: "fits", "nothing grows", a limit that is kept, "no difference". Where
a part is missing that it rests on, it is not given; figures are then lower bounds, and are called so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from vramscope.analysis import asking
from vramscope.analysis.leaks import LEAST_BYTES_PER_STEP, Leaks, leaks
from vramscope.analysis.leaks.all_steps import flat_by_counters, rise_by_counters
from vramscope.analysis.leaks.growth import LEAST_LEVELS
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.verdicts.missing import Missing, Part, missing_parts
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

_NO_STEPS = (
    "no steps are known, and without them it is not known whether memory grows from step to step. "
    "Record the training with `vramscope run` or `vramscope.record()`; a snapshot has steps where "
    "each is within torch.profiler.record_function('ProfilerStep#0'), '…#1' and so on"
)


_NEEDED = (Part.EVENTS, Part.SINGLE_EVENTS, Part.STEPS, Part.STACKS)
"""Parts without which growth is not compared; without the end it is, up to there."""


class GrowthVerdict(str, Enum):
    """Whether memory grows from step to step."""

    LEAKS = "leaks"
    GROWING_BATCH = "growing batch"
    """Each step needs more than the one before, because it is given more."""
    NOTHING = "nothing grows"
    LITTLE = "little grows"
    """What grows is below the least growth that counts as a leak."""
    RISES = "rises"
    """Memory rose a few times, at even distances; whether that goes on is not known."""
    TOO_FEW_STEPS = "too few steps"
    UNKNOWN = "unknown"
    """The recording does not decide it; the text says why."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """The verdict on growth, with its sentence."""

    verdict: GrowthVerdict
    text: str
    """The verdict as a sentence, without its first capital."""
    is_decided: bool
    """Whether a check can rely on it: a leak, or a whole run without one."""


def memory_growth(recording: Recording, found: Leaks, missing: Sequence[Missing]) -> MemoryGrowth:
    """Return the verdict on *found*, the answer of ``leaks``, where *missing* is what the recording lacks."""
    if found.leaks:
        rate = format_bytes(round(sum(leak.bytes_per_step for leak in found.leaks)))
        turn = "step" if found.has_steps else "loop iteration"
        many = f"{len(found.leaks)} leaks" if len(found.leaks) > 1 else "a leak"
        return MemoryGrowth(GrowthVerdict.LEAKS, f"{many}: {rate} more with every {turn}", is_decided=True)
    lacking = [each for each in missing if each.part in _NEEDED]
    rest = [each for each in missing if each.part is Part.END]
    if lacking:
        rise, text = rise_by_counters(recording), "whether anything grows is not known"
        if rise >= LEAST_BYTES_PER_STEP:
            text = f"memory grew by at least {format_bytes(rise)} a step, by a line that is not known"
        elif flat := flat_by_counters(recording):
            text = f"allocated memory does not grow: {flat}; whether that of one line does is not known"
        return MemoryGrowth(GrowthVerdict.UNKNOWN, f"{text}: {lacking[0].text}", is_decided=False)
    verdict, text = _without_leak(recording, found, rest[0].until if rest else "")
    is_decided = verdict in (GrowthVerdict.NOTHING, GrowthVerdict.LITTLE, GrowthVerdict.GROWING_BATCH)
    return MemoryGrowth(verdict, text, is_decided and not rest)


def _without_leak(recording: Recording, found: Leaks, until: str) -> tuple[GrowthVerdict, str]:
    if found.batch is not None:
        rate = format_bytes(round(found.batch.bytes_per_step))
        return GrowthVerdict.GROWING_BATCH, f"the batch grows: {rate} more with every step, no leak"
    if not found.n_iterations and not len(recording.steps):
        return GrowthVerdict.UNKNOWN, _NO_STEPS
    if found.n_iterations < LEAST_LEVELS:
        few = f"{found.n_iterations} of the {LEAST_LEVELS} that it takes"
        return GrowthVerdict.TOO_FEW_STEPS, f"too few steps to say whether anything grows: {few}"
    if 0 < found.n_rises < LEAST_LEVELS - 1:
        return GrowthVerdict.RISES, (
            f"memory rose {found.n_rises} times, at even distances as with evaluations: it takes "
            f"{LEAST_LEVELS - 1} times to say whether that goes on"
        )
    if found.little:
        return GrowthVerdict.LITTLE, _little(found.little[0])
    grows = f"nothing grew from step to step {until}" if until else "nothing grows from step to step"
    bounded = " and ".join(leak.holder or "a buffer" for leak in found.filling)
    return GrowthVerdict.NOTHING, f"{grows} but what has a bound: {bounded}" if bounded else grows


def _little(leak: Leak) -> str:
    """Return what keeps less than a leak in each step.

    A list of losses that is emptied after an epoch looks the same until then.
    """
    where = leak.lines[0].frame
    parts = [f"nothing grows by much: {format_bytes(round(leak.bytes_per_step))} a step"]
    parts += [f"from {where.file}:{where.line}"] if where else []
    parts += [f"kept by {leak.holder}"] if leak.holder else []
    return f"{', '.join(parts)} (no leak where it is cleared at times, as after an epoch)"


class Verdict(str, Enum):
    """What is said of a recording, beside its ``growth``."""

    LIMIT = "limit"
    """No more was allocated, or reserved, than is stated."""
    FIT = "fit"
    """The program fits a device."""
    DIFFERENCE = "difference"
    """Two recordings do not differ."""


_RESTS_ON = {
    Verdict.LIMIT: (Part.EVENTS, Part.CERTAINTY, Part.END, Part.RANKS),
    Verdict.FIT: (Part.EVENTS, Part.CERTAINTY, Part.SINGLE_EVENTS, Part.END),
    Verdict.DIFFERENCE: (Part.EVENTS, Part.SINGLE_EVENTS, Part.END, Part.STEPS),
}


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a recording lacks, and what can be said of it all the same."""

    missing: tuple[Missing, ...]
    """What the recording lacks, the gravest first; empty where it is complete."""
    growth: MemoryGrowth
    """Whether memory grows from step to step."""

    @property
    def peak_is_exact(self) -> bool:
        """Whether peaks are exact up to the end of the recording; otherwise they are lower bounds."""
        return is_exact(self.missing)


def verdicts(recording: Recording) -> Verdicts:
    """Return what *recording* lacks and the verdicts that this leaves; 1 s per million events."""
    missing = missing_parts(recording)
    return Verdicts(missing, memory_growth(recording, leaks(recording), missing))


def why_not(missing: Iterable[Missing], verdict: Verdict) -> str:
    """Return why *verdict* cannot be given, as a clause; '' if it can."""
    return next((each.text for each in missing if each.part in _RESTS_ON[verdict]), "")


def undecided_difference(before: Recording, after: Recording) -> str:
    """Return why it is not decided whether two recordings differ, as a clause; '' if it is."""
    reasons = [why_not(missing_parts(each), Verdict.DIFFERENCE) for each in (before, after)]
    named = [f"of the {name} {why}" for name, why in zip(("first", "second"), reasons, strict=True) if why]
    return "; ".join(named)


def is_exact(missing: Iterable[Missing]) -> bool:
    """Return whether totals and peaks are exact as far as the recording reaches."""
    return not any(each.part in (Part.EVENTS, Part.CERTAINTY) for each in missing)


ANALYSIS = asking("What of this recording is complete, and what can be said of it?", verdicts)
