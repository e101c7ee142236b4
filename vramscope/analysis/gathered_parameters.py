"""Finds whether FSDP gathers the parameters of all blocks of a model before the first of them runs."""

from dataclasses import dataclass

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

_LEAST_BYTES = 1 << 20
_LEAST_SHARE = 0.05
"""Share of the peak from which on it is worth a word."""


@dataclass(frozen=True, slots=True)
class GatheredParameters:
    """Parameters that are gathered at once, at the peak."""

    peak_bytes: int = 0
    n_bytes: int = 0
    """Unsharded parameters at the peak; 0 unless every forward gathers all of them before anything else."""
    n_blocks: int = 0
    """Numbered blocks of the model that have sharded parameters."""


def gathered_parameters(recording: Recording) -> GatheredParameters:
    """Look whether each forward of FSDP allocates all unsharded parameters before any activation."""
    labels = recording.labels
    names = {
        labels.names[name] for name in np.unique(labels.name[labels.category == Category.SHARDED_PARAMETER])
    }
    numbers = {tuple(part for part in name.split(".")[:-1] if part.isdigit())[:1] for name in names} - {()}
    if len(numbers) < 2:
        return GatheredParameters()
    found = lifetimes(recording)
    category = assign(recording, found).category
    gathered = category == Category.UNSHARDED_PARAMETER
    others = np.sort(
        found.alloc_event[~np.isin(category, (Category.UNSHARDED_PARAMETER, Category.COMMUNICATION))]
    )
    phases, n_at_once, n_forwards = recording.phases, 0, 0
    for row in np.flatnonzero(phases.phase == Phase.FORWARD).tolist():
        start, end = int(phases.start_event[row]), int(phases.end_event[row])
        mine = found.alloc_event[gathered & (found.alloc_event >= start) & (found.alloc_event < end)]
        if len(mine):
            n_forwards += 1
            n_at_once += bool(np.diff(np.searchsorted(others, [mine.min(), mine.max()]))[0] == 0)
    level = timeline(recording).allocated_bytes
    at = int(level.argmax())
    is_at_once = n_forwards and n_at_once == n_forwards
    n_bytes = int(found.block_size[gathered & found.allocated_at(at)].sum()) if is_at_once else 0
    return GatheredParameters(int(level[at]), n_bytes, len(numbers))


def findings(found: GatheredParameters) -> list[Finding]:
    """Return a finding where they are a share of the peak."""
    if found.n_bytes < max(_LEAST_BYTES, _LEAST_SHARE * found.peak_bytes):
        return []
    return [worded(FindingKind.GATHERED_AT_ONCE, found.n_bytes, blocks=found.n_blocks)]


ANALYSIS = Analysis(
    "gathered_parameters",
    "Does FSDP gather the parameters of all blocks at once?",
    gathered_parameters,
    findings,
)
