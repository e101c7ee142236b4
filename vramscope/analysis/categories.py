"""What are the allocated bytes for: parameters, gradients, activations?

By identity where capture knew the tensor; else by the phase that allocated the block and the one that
freed it; else unknown, which stays unknown.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis import Analysis
from vramscope.analysis._place import phases_of, steps_of
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.analysis.timeline import instant_of
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.table import Table


class Reason(IntEnum):
    """Why a block is in its category."""

    NONE = 0
    """Nothing is known."""
    IDENTITY = 1
    """Capture knew the tensor by its storage."""
    LIFETIME = 2
    """By the phases in which it was allocated and freed."""


@dataclass(frozen=True, slots=True)
class Assigned(Table):
    """One row per row of ``lifetimes``."""

    DTYPES: ClassVar = {"category": "u1", "reason": "u1", "label": "i4"}

    category: NDArray[Any]
    """A ``Category``."""
    reason: NDArray[Any]
    """A ``Reason``."""
    label: NDArray[Any]
    """Row of ``Recording.labels`` that knew it; −1 for none."""


@dataclass(frozen=True, slots=True)
class Categories:
    """What every allocation is for, and the sums at one instant."""

    instant: int
    assigned: Assigned
    n_bytes: NDArray[Any]
    """Allocated bytes at the instant, by ``Category``; they sum up to all that was allocated."""

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by the category's name, largest first, without those that have none."""
        order = np.argsort(-self.n_bytes, kind="stable").tolist()
        return {Category(i).name.lower(): int(self.n_bytes[i]) for i in order if self.n_bytes[i]}

    @property
    def is_known(self) -> bool:
        """Whether anything at the instant is more than unknown."""
        return bool(self.n_bytes[Category.UNKNOWN + 1 :].any())


def categories(recording: Recording, instant: int | None = None) -> Categories:
    """At *instant*, or at the peak where None."""
    found, at = lifetimes(recording), instant_of(recording, instant)
    assigned = assign(recording, found)
    live = found.allocated_at(at)
    n_bytes = np.zeros(len(Category), dtype="i8")
    np.add.at(n_bytes, assigned.category[live], found.block_size[live])
    return Categories(at, assigned, n_bytes)


def assign(recording: Recording, found: Allocations) -> Assigned:
    """The category of each allocation; the last label of a block wins over the others and over its phases."""
    label = _labels_of(recording.labels, found)
    by_phase = _by_lifetime(recording, found)
    category = np.where(label >= 0, _padded(recording.labels.category)[label], by_phase)
    guessed = np.where(by_phase != Category.UNKNOWN, Reason.LIFETIME, Reason.NONE)
    reason = np.where(label >= 0, Reason.IDENTITY, guessed)
    return Assigned.of(category=category, reason=reason, label=label)


def _padded(values: NDArray[Any]) -> NDArray[Any]:
    """One more value, for −1."""
    return np.append(values, 0)


def _labels_of(labels: Labels, found: Allocations) -> NDArray[Any]:
    """For each allocation the last label given to its address while it was in use; −1 for none.

    Births and labels are sorted together by (address, instant): a label belongs to the birth above it.
    """
    labels_known = np.flatnonzero(labels.category != Category.UNKNOWN)
    n = len(found)
    place = np.concatenate([found.address, labels.address[labels_known]])
    # A label at instant e was given before event e happened, after those below e.
    moment = np.concatenate([2 * found.alloc_event, 2 * labels.event[labels_known] - 1])
    order = np.lexsort((moment, place))
    birth_at = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
    row = np.flatnonzero((order >= n) & (birth_at >= 0))
    owner, label = order[birth_at[row]], labels_known[order[row] - n]
    end = found.completed_event[owner]
    fits = (found.address[owner] == labels.address[label]) & ((end == ALIVE) | (end >= labels.event[label]))
    owner, label = owner[fits], label[fits]
    last = np.full(n, -1, dtype="i8")
    given = np.lexsort((label, labels.event[label]))
    last[owner[given]] = label[given]
    return last


def _by_lifetime(recording: Recording, found: Allocations) -> NDArray[Any]:
    """What the phases of birth and death say; UNKNOWN where they say nothing.

    A block that outlives the forward that made it, and dies by the end of the next step, was kept for
    backward, as is one made between the phases of a step and freed within its backward (a loss function's).
    One that outlives the backward that made it is a gradient; what an optimizer step makes and keeps is its
    state. What dies in the stretch that made it was temporary.
    """
    known = recording.phases.rows(recording.phases.phase != Phase.USER)
    n_events = len(recording.trace)
    row_at = np.append(phases_of(known, n_events), -1)
    born = np.where(found.alloc_event >= 0, row_at[found.alloc_event], -1)
    dies = np.where(found.free_event == ALIVE, n_events, found.free_event)
    end = _padded(known.end_event)[born]
    phase = np.where(born >= 0, _padded(known.phase)[born], Phase.OTHER)
    outlives = (dies >= end) & np.append(_is_closed(known, recording.marks, n_events), False)[born]
    kept_as = np.select(
        [phase == Phase.BACKWARD, phase == Phase.DATA, phase == Phase.RECOMPUTE, phase == Phase.OPTIMIZER],
        [Category.GRADIENT, Category.INPUT, Category.ACTIVATION, Category.OPTIMIZER_STATE],
        Category.UNKNOWN,
    )
    forward = np.isin(phase, (Phase.FORWARD, Phase.LOSS))
    for_backward = forward & _served_backward(recording, found.alloc_event, dies)
    kept = np.where(for_backward, Category.ACTIVATION, kept_as)
    guess = np.where(outlives, kept, np.where(dies < end, Category.TEMPORARY, Category.UNKNOWN))
    by_phase = np.where((born >= 0) & (phase != Phase.OTHER), guess, Category.UNKNOWN)
    of_loss = (born < 0) & _freed_by_its_backward(recording, row_at, known, found)
    return np.where(of_loss, Category.ACTIVATION, by_phase)


def _freed_by_its_backward(
    recording: Recording, row_at: NDArray[Any], known: Phases, found: Allocations
) -> NDArray[Any]:
    """Whether a block was born in a step and freed within a backward of that step.

    Born outside of every module, as what a loss function saves: only autograd lets go of it there.
    """
    step = steps_of(recording.steps, found.alloc_event)
    freed_in = row_at[np.where(found.free_event < 0, len(recording.trace), found.free_event)]
    is_backward = (freed_in >= 0) & (_padded(known.phase)[freed_in] == Phase.BACKWARD)
    freed: NDArray[Any] = is_backward & (step >= 0) & (step == steps_of(recording.steps, found.free_event))
    return freed


def _is_closed(phases: Phases, marks: Marks, n_events: int) -> NDArray[Any]:
    """Which phases ended: before the recording did, or with it by a mark of their own."""
    ends = marks.rows(marks.kind == MarkKind.PHASE_END)
    closed: NDArray[Any] = phases.end_event < n_events
    for phase in Phase:
        mine = phases.phase == phase
        closed[mine] |= np.isin(phases.end_ns[mine], ends.time_ns[ends.phase == phase])
    return closed


def _served_backward(recording: Recording, born: NDArray[Any], dies: NDArray[Any]) -> NDArray[Any]:
    """Whether a backward of its step began while the block lived, and it died no later than the next step."""
    steps, phases = recording.steps, recording.phases
    begins = np.sort(phases.start_event[phases.phase == Phase.BACKWARD])
    following = np.append(begins, len(recording.trace) + 1)[np.searchsorted(begins, born)]
    step = steps_of(steps, born)
    ends = _padded(steps.end_event)
    step_end = np.where(step >= 0, ends[step], len(recording.trace))
    next_end = np.where(
        (step >= 0) & (step + 1 < len(steps)), ends[np.minimum(step + 1, len(steps))], step_end
    )
    served: NDArray[Any] = (following <= dies) & (following < step_end) & (dies <= next_end)
    return served


ANALYSIS = Analysis("categories", "What are the allocated bytes for?", categories)
