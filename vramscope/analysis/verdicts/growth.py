"""Says whether memory grows from step to step, as far as the recording decides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from vramscope.analysis.leaks import LEAST_BYTES_PER_STEP, Leaks
from vramscope.analysis.leaks.all_steps import rise_by_counters
from vramscope.analysis.leaks.growth import LEAST_LEVELS
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.verdicts.missing import Missing, Part
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
        return MemoryGrowth(GrowthVerdict.LEAKS, _leaking(found), is_decided=True)
    lacking = [each for each in missing if each.part in _NEEDED]
    rest = [each for each in missing if each.part is Part.END]
    if lacking:
        rise, text = rise_by_counters(recording), "whether anything grows is not known"
        if rise >= LEAST_BYTES_PER_STEP:
            text = f"memory grew by at least {format_bytes(rise)} a step, by a line that is not known"
        return MemoryGrowth(GrowthVerdict.UNKNOWN, f"{text}: {lacking[0].text}", is_decided=False)
    verdict, text = _without_leak(recording, found, rest[0].until if rest else "")
    is_decided = verdict in (GrowthVerdict.NOTHING, GrowthVerdict.LITTLE, GrowthVerdict.GROWING_BATCH)
    return MemoryGrowth(verdict, text, is_decided and not rest)


def _leaking(found: Leaks) -> str:
    rate = format_bytes(round(sum(leak.bytes_per_step for leak in found.leaks)))
    turn = "step" if found.has_steps else "loop iteration"
    many = f"{len(found.leaks)} leaks" if len(found.leaks) > 1 else "a leak"
    return f"{many}: {rate} more with every {turn}"


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
    return GrowthVerdict.NOTHING, grows


def _little(leak: Leak) -> str:
    """Return what keeps less than a leak in each step.

    A list of losses that is emptied after an epoch looks the same until then.
    """
    where = leak.lines[0].frame
    parts = [f"nothing grows by much: {format_bytes(round(leak.bytes_per_step))} a step"]
    parts += [f"from {where.file}:{where.line}"] if where else []
    parts += [f"kept by {leak.holder}"] if leak.holder else []
    return f"{', '.join(parts)} (no leak where it is cleared at times, as after an epoch)"
