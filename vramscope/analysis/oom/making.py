"""What the step of an optimizer was making when a request failed: state, or a temporary for each gradient."""

from typing import NamedTuple

import numpy as np

from vramscope.allocator.settings import GRANULE
from vramscope.analysis.folding import passes_through
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.strategies.optimizer import WITH_8_BITS
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.package_data import words
from vramscope.units import format_bytes

_TEXTS = words(__file__, "advice.tsv", "making")
_COUNTS = {1: "one value", 2: "two values", 3: "three values"}


class Making(NamedTuple):
    """How far an optimizer's step had come with what it makes for each gradient, and what takes less."""

    claim: str = ""
    advice: str | None = None


NO_MAKING = Making()


def making(recording: Recording, found: Allocations, event: int, gradients: Array) -> Making:
    """Return what was being made when the request at *event* failed.

    *gradients* are the rows of *found* that are gradients then. A line makes one for each of them if all that
    it made of their sizes, two or more, is still there: what a loop over parameters lets go is none.
    """
    phases, sizes = recording.phases, found.block_size[gradients]
    begun = np.flatnonzero((phases.phase == Phase.OPTIMIZER) & (phases.start_event <= event))
    if not len(begun) or phases.end_event[begun[-1]] <= event:
        return NO_MAKING
    born = (found.alloc_event >= phases.start_event[begun[-1]]) & (found.alloc_event < event)
    born &= (found.block_size > GRANULE) & np.isin(found.block_size, sizes)
    gone = born & (found.free_event >= 0) & (found.free_event <= event)
    lines, n_blocks = np.unique(found.stack_id[born], return_counts=True)
    of_state = passes_through(recording.stacks, "_init_group")
    lines = lines[(of_state[lines] | (n_blocks > 1)) & ~np.isin(lines, found.stack_id[gone])]
    name = phases.names[int(phases.name[begun[-1]])]
    is_state = bool(of_state[recording.trace.stack_id[event]])
    n_values = max(len(lines), is_state * (2 if "Adam" in name else 1))
    done = int(found.block_size[born & np.isin(found.stack_id, lines)].sum())
    left = n_values * int(sizes.sum()) - done
    if left <= 0:
        return NO_MAKING
    of_eight = f".{name}8bit" if name in WITH_8_BITS else ""
    one_moment = ", with one moment (Lion)" if "Adam" in name else ""
    figures = [format_bytes(n_bytes) for n_bytes in (done, done + left, left)]
    values = _COUNTS.get(n_values, f"{n_values} values")
    claim = _TEXTS["claim"].format(name, "its state, " * is_state + values, *figures)
    return Making(claim, _TEXTS["advice"].format(of_eight, one_moment))
