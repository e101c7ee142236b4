"""Finds whether FSDP gathers the parameters of all blocks of a model before the first of them runs."""

import re

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import assign
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

_BLOCK = re.compile(r"(?:[^.]+\.)*?\d+(?=\.)")
_LEAST_BYTES = 1 << 20
_LEAST_SHARE = 0.05
"""Share of the peak from which on it is worth a word."""


def gathered_parameters(recording: Recording) -> list[Finding]:
    """Find whether each forward of FSDP allocates all unsharded parameters before any activation."""
    labels = recording.labels
    names = {
        labels.names[name] for name in np.unique(labels.name[labels.category == Category.SHARDED_PARAMETER])
    }
    blocks = {block[0] for name in names if (block := _BLOCK.match(name))}
    if len(blocks) < 2:
        return []
    found = lifetimes(recording)
    category, born = assign(recording, found).category, found.alloc_event
    gathered = category == Category.UNSHARDED_PARAMETER
    others = np.sort(born[~gathered & (category != Category.COMMUNICATION)])
    phases, at_once, n_bytes = recording.phases, list[bool](), 0
    for row in np.flatnonzero(phases.phase == Phase.FORWARD).tolist():
        rows = gathered & (born >= phases.start_event[row]) & (born < phases.end_event[row])
        if rows.any():
            first, last = np.searchsorted(others, [born[rows].min(), born[rows].max()])
            at_once.append(bool(first == last))
            n_bytes = max(n_bytes, int(found.block_size[rows].sum()))
    least = max(_LEAST_BYTES, _LEAST_SHARE * timeline(recording).allocated_bytes.max())
    if not at_once or not all(at_once) or n_bytes < least:
        return []
    return [worded(FindingKind.GATHERED_AT_ONCE, n_bytes, blocks=len(blocks))]


ANALYSIS = asking("Does FSDP gather all parameters at once?", gathered_parameters, list)
