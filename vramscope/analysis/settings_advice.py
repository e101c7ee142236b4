"""Searches for an allocator setting that helps, and proves it by replay.

A few settings are tried on the recorded requests, see ``what_if``; the simplest one that helps is advised. If
reserved memory is hardly above allocated memory, no setting can save anything, and none is tried. Nor is one
where what was cached before the recording, or events that are missing, would decide the comparison.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from vramscope.allocator.settings import Settings, version_of
from vramscope.analysis import asking
from vramscope.analysis.churn import churn_of
from vramscope.analysis.recorded_settings import recorded_limit
from vramscope.analysis.timeline import timeline
from vramscope.analysis.verdicts.missing import Part, ended_short, missing_parts, until
from vramscope.analysis.what_if import (
    ReplayResult,
    RequestSequence,
    device_total,
    emptied_after,
    replay,
    request_sequence,
)
from vramscope.analysis.what_if.epochs import ends_of_epochs
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Recording
from vramscope.package_data import words
from vramscope.units import format_bytes

WORTH_IT = 0.02
"""A setting must save this share of the reserved bytes to be advised."""
SAME = 0.02
"""Share of the recorded bytes: a replay that differs by less reproduces them."""
_AS_GOOD = 0.8
"""A simpler setting that saves this share of the best saving is preferred."""
_SPLITS_MB = (64, 256, 1024)
_LARGE_MB = (64,)
_DIVISIONS = (4, 8)
_FRACTION, _THRESHOLD = 0.95, 0.8
"""Garbage is collected above this threshold of what the memory fraction allows; without a fraction, never."""

Play = Callable[[Callable[["Candidate"], ReplayResult], Iterable["Candidate"]], Iterable[ReplayResult]]
"""A function like ``map``; it may use several processes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting to try."""

    name: str
    """Name for tables and sentences."""
    conf: str
    """The whole text for PYTORCH_CUDA_ALLOC_CONF, including what was set already."""
    effort: int
    """1: simple and rarely harmful … 3: costs time."""
    empty_cache_after: str = ""
    """Call ``torch.cuda.empty_cache()`` after every "step" or "epoch" instead; '' for never."""
    memory_fraction: float | None = None
    """Fraction that the program has to set, where the environment cannot; None for no fraction."""

    @property
    def call(self) -> str:
        """The line that the program needs; '' if the environment is enough."""
        if self.empty_cache_after:
            return f"torch.cuda.empty_cache()  # after every {self.empty_cache_after}"
        if self.memory_fraction is not None:
            return f"torch.cuda.set_per_process_memory_fraction({self.memory_fraction})"
        return ""


@dataclass(frozen=True, slots=True)
class SettingTrial:
    """A setting and the result of its replay."""

    candidate: Candidate
    outcome: ReplayResult


@dataclass(frozen=True, slots=True)
class SettingsAdvice:
    """The settings that were tried, and the one that helps."""

    recorded_peak_bytes: int
    """The most reserved bytes, as recorded."""
    base: ReplayResult
    """Replay under the recorded settings."""
    trials: tuple[SettingTrial, ...] = ()
    """Every setting that was tried."""
    advised: SettingTrial | None = None
    """The setting that is advised; None to change nothing."""
    reason: str = ""
    """Why this setting, or none, is advised, in one sentence."""
    environment: str = ""
    """The line to set in the environment, as the recording's torch reads it."""
    as_recorded: ReplayResult | None = None
    """Replay under the recorded circumstances, if ``base`` has a limit that the recording did not have."""
    nothing_helps: bool = False
    """Whether it is shown that no setting saves 2 %; False where settings cannot be compared."""

    @property
    def is_reproduced(self) -> bool:
        """Whether the replay under the recorded circumstances reserves what was recorded: ``comes_to``."""
        return comes_to(self.as_recorded or self.base, self.recorded_peak_bytes)


def comes_to(outcome: ReplayResult | None, recorded_peak: int) -> bool:
    """Return whether a replay reserves what was recorded, within 2 %; True where that says nothing."""
    reached = 0 if outcome is None else outcome.peak_reserved_bytes
    return not recorded_peak or abs(reached - recorded_peak) <= SAME * recorded_peak


def settings_advice(
    recording: Recording, capacity_bytes: int | None = None, play: Play = map, total_bytes: int | None = None
) -> SettingsAdvice:
    """Search for an allocator setting that helps: ten replays of 2 to 3 s per million events each.

    Parameters
    ----------
    capacity_bytes
        The most that the allocator can reserve. If None: what the device had if the recording ran out of
        memory, else no limit.
    play
        A function like ``map`` that runs the trials; it may spread them over processes.
    total_bytes
        Size of the whole device, see ``what_if``.
    """
    return searched(recording, (capacity_bytes, total_bytes), play)


def searched(recording: Recording, room: tuple[int | None, int | None], play: Play) -> SettingsAdvice:
    """Return the same as ``settings_advice``.

    *room* is the most that the allocator can reserve, and the device's total, both in bytes; None as there.
    """
    capacity_bytes, total_bytes = room
    program = request_sequence(recording)
    recorded = int(timeline(recording).reserved_bytes.max(initial=0))
    is_chosen = capacity_bytes is not None
    total_bytes = device_total(recording, capacity_bytes, total_bytes)
    if capacity_bytes is None:
        capacity_bytes = recorded_capacity(recording)
    base = replay(program, program.settings, capacity_bytes, total_bytes)
    as_recorded = None
    if is_chosen and not comes_to(base, recorded):
        # The chosen limit may cause the difference, which then says nothing about the replay.
        as_recorded = reproduction(recording, program)[0]
    advice = SettingsAdvice(recorded, base, as_recorded=as_recorded)
    missing = missing_parts(recording)
    lacking = next((each.text for each in missing if each.part is Part.EVENTS), "")
    if lacking:
        return replace(advice, reason=f"settings cannot be compared: {lacking}")
    if not advice.is_reproduced:
        reserves, most = format_bytes((as_recorded or base).peak_reserved_bytes), format_bytes(recorded)
        why = f"the replay reserves {reserves} at most where {most} were recorded"
        return replace(advice, reason=f"settings cannot be compared: {why}")
    hopeless = _hopeless(program, base, until(missing))
    if hopeless:
        return replace(advice, reason=hopeless, nothing_helps=base.fits)
    bare = base
    if program.earlier is not None:
        bare = replay(replace(program, earlier=None), program.settings, capacity_bytes, total_bytes)
    unknown = _unknown_past(recording, base, bare)
    if unknown:
        return replace(advice, reason=unknown)
    wanted = list(candidates(recording, is_short=capacity_bytes is not None))
    trial = partial(replayed, program, recording, (capacity_bytes, total_bytes))
    trials = tuple(map(SettingTrial, wanted, play(trial, wanted)))
    fits = "gets past that request" if ended_short(recording) else "fits"
    if base.fits:
        least = min(base.peak_reserved_bytes, bare.peak_reserved_bytes)
        advised, reason = _saving(base, trials, least, until(missing))
    else:
        advised, reason = _fitting(trials, fits)
    line = environment_line(advised.candidate) if advised else ""
    helpless = base.fits and advised is None
    return replace(
        advice, trials=trials, advised=advised, reason=reason, environment=line, nothing_helps=helpless
    )


def reproduction(recording: Recording, program: RequestSequence) -> tuple[ReplayResult, ReplayResult]:
    """Return the replay under the recorded circumstances, and the one on a device without a limit."""
    free = replay(program, program.settings, None, device_total(recording, None, None))
    capacity = recorded_capacity(recording)
    if capacity is None:
        return free, free
    return replay(program, program.settings, capacity, device_total(recording, capacity, None)), free


def recorded_capacity(recording: Recording) -> int | None:
    """Return the bytes that the allocator could reserve when it ran short; None if it never did."""
    short = churn_of(recording)
    if not short.n_retries and not short.n_ooms:
        return None
    limit, reserved = recorded_limit(recording), timeline(recording).reserved_bytes
    total, outside = recording.device.total_bytes, outside_bytes(recording)
    free = total - outside if total and outside is not None else 0
    failed = recording.marks.rows(recording.marks.kind == MarkKind.OOM)
    # What was free on the device when a request failed is too small for that one, and room for others.
    left = reserved[np.minimum(failed.event, len(reserved) - 1)] + np.maximum(failed.value, 0)
    room = max(free, int(left.max(initial=0))) if limit is None else limit
    return max(int(reserved.max(initial=0)), room) or None


def replayed(
    program: RequestSequence,
    recording: Recording,
    room: tuple[int | None, int | None],
    candidate: Candidate | None,
) -> ReplayResult:
    """Replay with *candidate*, or as recorded if None.

    *room* is the most that the allocator can reserve, and the device's total, both in bytes.
    """
    conf = str(recording.process.allocator.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    if candidate is None:
        return replay(program, program.settings, *room)
    emptied = emptied_after(program, recording, candidate.empty_cache_after)
    if candidate.conf == conf and candidate.memory_fraction is None:
        return replay(emptied, program.settings, *room)
    settings = Settings.from_conf(candidate.conf, torch=recording.process.torch)
    if candidate.memory_fraction is not None:
        settings = replace(settings, memory_fraction=candidate.memory_fraction)
    return replay(emptied, settings, *room)


def candidates(recording: Recording, is_short: bool = False) -> Iterator[Candidate]:
    """Yield the settings worth trying, the simplest first; settings already in use are kept.

    *is_short* is for a card that may be too small, where collecting garbage may do better than releasing the
    whole cache.
    """
    process = recording.process
    conf = str(process.allocator.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    if not Settings.from_snapshot(process.allocator, torch=process.torch).expandable_segments:
        yield _with(conf, "expandable_segments", "True", 1)
    for size in _SPLITS_MB:
        yield _with(conf, "max_split_size_mb", str(size), 2)
    for divisions in _DIVISIONS:
        yield _with(conf, "roundup_power2_divisions", str(divisions), 2)
    if version_of(process.torch) >= (2, 11):
        for size in _LARGE_MB:
            yield _with(conf, "large_segment_size_mb", str(size), 2)
    if is_short:
        yield from _collecting(conf, process.torch)
    n_epochs, n_steps = len(ends_of_epochs(recording)), len(recording.steps)
    for word, n_times in (("epoch", n_epochs if n_epochs < n_steps else 0), ("step", n_steps)):
        if n_times:
            yield Candidate(f"torch.cuda.empty_cache() after every {word}", conf, 3, empty_cache_after=word)


def _collecting(conf: str, torch: str) -> Iterator[Candidate]:
    """Yield a setting that collects garbage.

    The allocator collects garbage only if a memory fraction is set, which the environment can do from torch
    2.10 on.
    """
    if "per_process_memory_fraction" in conf:
        yield _with(conf, "garbage_collection_threshold", str(_THRESHOLD), 2)
    elif version_of(torch) >= (2, 10):
        kept = _with(conf, "per_process_memory_fraction", str(_FRACTION), 2).conf
        yield _with(kept, "garbage_collection_threshold", str(_THRESHOLD), 2)
    else:
        found = _with(conf, "garbage_collection_threshold", str(_THRESHOLD), 3)
        yield replace(found, memory_fraction=_FRACTION)


def _with(conf: str, key: str, value: str, effort: int) -> Candidate:
    """Return *conf* with one key set; commas separate keys, except commas in brackets."""
    kept = [part for part in re.split(r",(?![^\[]*\])", conf) if part and not part.strip().startswith(key)]
    return Candidate(f"{key}:{value}", ",".join([*kept, f"{key}:{value}"]), effort)


def environment_line(candidate: Candidate) -> str:
    """Return the line to set before the program starts; '' if the program itself has to change.

    Every torch version from 2.6 to 2.13 reads this name. ``PYTORCH_ALLOC_CONF``, which torch 2.9 asks for in
    a warning, is not read for CUDA by 2.9 itself; if both are set, this one wins.
    """
    return "" if candidate.empty_cache_after else f"PYTORCH_CUDA_ALLOC_CONF={candidate.conf}"


def _unknown_past(recording: Recording, base: ReplayResult, bare: ReplayResult) -> str:
    """Return why nothing can be compared if what was cached before the recording decides it; else ''.

    *bare* is the replay that begins with the live blocks alone, as those under other settings do.
    """
    cached = base.peak_reserved_bytes - bare.peak_reserved_bytes
    if not (base.fits and bare.fits) or cached < _worth(base):
        return ""
    before = recording.initial.reserved_bytes
    return _said("unknown_past", base.peak_reserved_bytes, before, bare.peak_reserved_bytes)


def _said(which: str, *sizes: int) -> str:
    return words(__file__, "settings_advice.tsv", "said")[which].format(*map(format_bytes, sizes))


def _hopeless(program: RequestSequence, base: ReplayResult, so_far: str) -> str:
    """Return why no setting can help, or ''; *so_far* is the moment up to which the recording counts."""
    # Requested bytes, not allocated ones: how much a block is rounded up depends on the settings.
    held, asked, capacity_bytes = base.failed_requested_bytes, base.failed_bytes, base.capacity_bytes
    if capacity_bytes is not None and not base.fits and held + asked > capacity_bytes:
        return _said("too_much", held, asked, capacity_bytes)
    is_rounded = any(program.settings.roundup_power2_divisions)  # then another setting allocates less
    spare = base.peak_reserved_bytes - base.peak_allocated_bytes
    if base.fits and not base.n_retries and spare < _worth(base) and not is_rounded:
        return _change_nothing(so_far) + _said("no_spare", spare)
    return ""


def _change_nothing(so_far: str) -> str:
    return f"{so_far}, " if so_far else "change nothing: "


def _worth(base: ReplayResult) -> float:
    return WORTH_IT * base.peak_reserved_bytes


def _fitting(trials: tuple[SettingTrial, ...], fits: str) -> tuple[SettingTrial | None, str]:
    """Return the simplest setting that *fits*, a verb phrase, where the program alone does not; and why."""
    fitting = [trial for trial in trials if trial.outcome.fits]
    if not fitting:
        return None, "no setting that was tried makes it fit"
    best = min(fitting, key=lambda trial: (trial.candidate.effort, trial.outcome.peak_reserved_bytes))
    return best, f"with {best.candidate.name} it {fits}; as it is, it does not"


def _saving(
    base: ReplayResult, trials: tuple[SettingTrial, ...], least_bytes: int, so_far: str
) -> tuple[SettingTrial | None, str]:
    """Return the simplest setting that saves enough of *least_bytes*, and why.

    *least_bytes* is the least that the unchanged program reserves, whatever was cached before the recording.
    """
    worth = _worth(base)
    fitting = [trial for trial in trials if trial.outcome.fits]
    saved = {id(trial): least_bytes - trial.outcome.peak_reserved_bytes for trial in fitting}
    calm = [trial for trial in fitting if trial.outcome.n_retries <= base.n_retries]
    helping = [trial for trial in calm if saved[id(trial)] >= worth]
    if helping:
        most = max(saved[id(trial)] for trial in helping)
        good = [trial for trial in helping if saved[id(trial)] >= _AS_GOOD * most]
        best = min(good, key=lambda trial: (trial.candidate.effort, -saved[id(trial)]))
        n_bytes = base.peak_reserved_bytes - best.outcome.peak_reserved_bytes
        return best, f"{best.candidate.name} saves {format_bytes(n_bytes)} of reserved memory"
    calmer = [trial for trial in calm if trial.outcome.n_retries < base.n_retries]
    if calmer:
        best = min(calmer, key=lambda trial: (trial.outcome.n_retries, trial.candidate.effort))
        n_less = base.n_retries - best.outcome.n_retries
        return best, f"{best.candidate.name} spares {n_less} releases of the whole cache"
    return None, f"{_change_nothing(so_far)}{_nothing_saves(base, fitting, calm)}"


def _nothing_saves(base: ReplayResult, fitting: list[SettingTrial], calm: list[SettingTrial]) -> str:
    """Return that no setting saves enough, in the words that the table of trials allows."""
    enough = base.peak_reserved_bytes - _worth(base)
    if any(trial.outcome.peak_reserved_bytes <= enough for trial in calm):
        return "no setting that was tried surely saves 2 %: what was cached before the recording decides it"
    if any(trial.outcome.peak_reserved_bytes <= enough for trial in fitting):
        return "what saves 2 % of reserved memory releases the whole cache more often"
    return "no setting that was tried saves 2 % of reserved memory"


def outside_bytes(recording: Recording) -> int | None:
    """Return the most bytes that this process held outside of the allocator.

    None if the driver was not asked.
    """
    counters: Any = recording.counters
    known = (counters.process_used_bytes >= 0) & (counters.reserved_bytes >= 0)
    if not known.any():
        return None
    return max(int((counters.process_used_bytes - counters.reserved_bytes)[known].max()), 0)


ANALYSIS = asking("Which setting of the allocator would help, proven by replay?", settings_advice)
