"""Assigns a category to each allocation: parameter, gradient, activation and so on.

The category comes from the identity of the tensor where capture knew it; else from the stack, and from the
phases in which the block was allocated and freed. Otherwise it stays unknown. ``categories().why(row)`` gives
the reason for every allocation.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories.by_lifetime import Lives, Reason, by_life, lives_of
from vramscope.analysis.categories.by_stack import (
    by_collective,
    by_stack,
    is_bare,
    is_constructed,
    is_workspace,
)
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.analysis.shared_results import kept
from vramscope.analysis.step_and_phase import number_of_step
from vramscope.analysis.timeline import instant_of
from vramscope.model.marks import Category, Labels, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array, EqualByValue, Int32, Table, UInt8, sums_of
from vramscope.package_data import words
from vramscope.steps.unrecorded import unrecorded

_KNOWN, _NAMELESS, _BY_COLLECTIVE, _BY_STACK = (
    {Category[name.upper()]: text for name, text in words(__file__, "why.tsv", kind).items()}
    for kind in ("known", "nameless", "collective", "stacks")
)
_BECAUSE = {Reason[name.upper()]: text for name, text in words(__file__, "why.tsv", "because").items()}
_OWN_NAMES = (Category.PARAMETER, Category.BUFFER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER)


def why(recording: Recording, allocation: Allocations, category: Category, reason: Reason, name: str) -> str:
    """Explain the category of the one row of *allocation*; *name* is the name of its label."""
    if reason == Reason.IDENTITY:
        text = _KNOWN.get(category, "known by its storage: {name}")
        if not name:
            text = _NAMELESS.get(category, text.partition(":")[0])
        return text.format(name=f"`{name}`" if category in _OWN_NAMES else name)
    if reason == Reason.STACKS:
        return _BY_STACK[category]
    if reason == Reason.COLLECTIVE and category in _BY_COLLECTIVE:
        return _BY_COLLECTIVE[category]
    lives = lives_of(recording, allocation)
    born, died = _born(recording, lives, allocation), _died(recording, lives, allocation)
    return _BECAUSE.get(reason, "{born}; {died}: nothing says what for").format(born=born, died=died)


def _born(recording: Recording, lives: Lives, allocation: Allocations) -> str:
    event = int(allocation.alloc_event[0])
    if event < 0:
        what = "the detail that was kept" if recording.past.n_events else "the recording began"
        return f"there before {what}"
    step = number_of_step(recording.steps, event)
    where = f"in {Phase(int(lives.phase[0])).name.lower()}" if lives.born_in[0] >= 0 else "between the phases"
    return f"born {where}, outside of every step" if step is None else f"born {where} of step {step}"


def _died(recording: Recording, lives: Lives, allocation: Allocations) -> str:
    event = int(allocation.free_event[0])
    if event == ALIVE:
        return "alive at the end"
    row = int(lives.freed_in[0])
    where = f"in {Phase(int(lives.phases.phase[row])).name.lower()}" if row >= 0 else "between the phases"
    step = number_of_step(recording.steps, event)
    if row >= 0 and lives.born_in[0] == row:
        return "dead within it"
    return f"freed {where}" if step is None else f"freed {where} of step {step}"


__all__ = ["ANALYSIS", "Assigned", "Categories", "Reason", "assign", "categories", "undivided"]


@dataclass(frozen=True, slots=True)
class Assigned(Table):
    """The category of each allocation: one row per row of ``lifetimes``."""

    category: UInt8
    """A ``Category``."""
    reason: UInt8
    """A ``Reason``."""
    label: Int32
    """Row of ``Recording.labels`` that gave the category; −1 for none."""


def names_of(labels: Labels, row: Array) -> Array:
    """Return the name of each *row* of the labels; '' for −1."""
    return np.array([*labels.names, ""])[np.append(labels.name, -1)[row]]


@dataclass(frozen=True, slots=True)
class Categories(EqualByValue):
    """The category of every allocation, and the sums at one instant."""

    instant: int
    assigned: Assigned
    n_bytes: Array
    """Allocated bytes at the instant, by ``Category``; they sum up to all allocated bytes."""
    allocations: Allocations = field(default_factory=Allocations.of, repr=False)
    """The allocations; row i belongs to row i of ``assigned``."""
    recording: Recording = field(default_factory=Recording, repr=False)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by category name, largest first, without empty categories."""
        order = np.argsort(-self.n_bytes, kind="stable").tolist()
        return {Category(i).name.lower(): int(self.n_bytes[i]) for i in order if self.n_bytes[i]}

    def why(self, row: int) -> str:
        """Why the allocation of that row is in its category, in words."""
        label = int(self.assigned.label[row])
        labels = self.recording.labels
        name = labels.names[labels.name[label]] if label >= 0 else ""
        category, reason = Category(int(self.assigned.category[row])), Reason(int(self.assigned.reason[row]))
        return why(self.recording, self.allocations.rows(slice(row, row + 1)), category, reason, name)

    @property
    def is_known(self) -> bool:
        """Whether any byte at the instant has a known category."""
        return bool(self.n_bytes[Category.UNKNOWN + 1 :].any())


def categories(recording: Recording, instant: int | None = None) -> Categories:
    """Allocated bytes by category at one instant.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    """
    found, at = lifetimes(recording), instant_of(recording, instant)
    assigned = assign(recording, found)
    live = found.allocated_at(at)
    n_bytes = sums_of(assigned.category[live], found.block_size[live], len(Category))
    return Categories(at, assigned, n_bytes, found, recording)


@kept
def assign(recording: Recording, found: Allocations) -> Assigned:
    """The category of each allocation; the last label of a block overrides earlier ones and all rules."""
    labels = recording.labels
    named = np.flatnonzero(labels.category != Category.UNKNOWN)
    row = last_known(found, labels.address[named], labels.event[named])
    label = np.where(row >= 0, np.append(named, 0)[row], -1)
    category, reason, phase = by_life(recording, found)
    if is_bare(recording):
        by_stacks = by_stack(recording, found)
        is_decided = by_stacks != Category.UNKNOWN
        category[is_decided], reason[is_decided] = by_stacks[is_decided], Reason.STACKS
    is_parameter = (category == Category.UNKNOWN) & is_constructed(recording.stacks, found)
    for mine, meant, because in (
        (is_parameter, Category.PARAMETER, Reason.CONSTRUCTED),
        (is_workspace(recording, found, phase, label >= 0), Category.WORKSPACE, Reason.WORKSPACE),
    ):
        category[mine], reason[mine] = meant, because
    collective = by_collective(recording.stacks, found)
    is_asked = collective != Category.UNKNOWN
    category[is_asked], reason[is_asked] = collective[is_asked], Reason.COLLECTIVE
    # What stands for a step without events says nothing of the phase.
    between = unrecorded(recording).stand_in(found.alloc_event)
    category[between], reason[between] = Category.UNKNOWN, Reason.NONE
    held = _in_optimizers(recording, found)
    category[held], reason[held] = Category.OPTIMIZER_STATE, Reason.HELD
    is_labelled = np.flatnonzero(label >= 0)
    category[is_labelled] = recording.labels.category[label[is_labelled]]
    reason[is_labelled] = Reason.IDENTITY
    # While FSDP computes with it, a module shows the gathered parameter in the place of its own.
    is_gathered = (collective == Category.UNSHARDED_PARAMETER) & (category == Category.PARAMETER)
    category[is_gathered] = Category.UNSHARDED_PARAMETER
    return Assigned.of(category=category, reason=reason, label=label)


def _in_optimizers(recording: Recording, found: Allocations) -> Array:
    """Return which rows a search met in an optimizer's state: no step that would name it need have ended.

    A training that goes on from a checkpoint has all of its state before its first step.
    """
    holders, first = recording.holders, recording.holders.first_rows()
    code = {name: at for at, name in enumerate(holders.names)}
    leads_on = np.isin(holders.kind, [code.get(word, -1) for word in _WITHIN_STATE])
    before = np.maximum.accumulate(np.where(leads_on, -1, np.arange(len(holders))))
    last = before[np.append(first[1:], len(holders))[: len(first)] - 1]
    is_state = holders.name[last] == code.get("state", -1)
    begins = first[is_state & (holders.kind[last] == code.get("optimizer", -1))]
    return last_known(found, holders.address[begins], holders.event[begins]) >= 0


_WITHIN_STATE = ("key", "item", "view", "end")
"""Words of a path that leads on in a state to one of its tensors."""
_UNDIVIDED = np.arange(len(Category), dtype="u1")
_UNDIVIDED[Category.SHARDED_PARAMETER] = Category.PARAMETER
_UNDIVIDED[Category.SHARDED_GRADIENT] = Category.GRADIENT
_UNDIVIDED[Category.UNSHARDED_PARAMETER] = Category.COMMUNICATION


def undivided(assigned: Assigned) -> Assigned:
    """The same allocations, where a shard is what it is a part of, and a gathered parameter communication.

    So an analysis of what a rank keeps for its model needs no rule for shards.
    """
    return replace(assigned, category=_UNDIVIDED[assigned.category])


def last_known(found: Allocations, address: Array, event: Array) -> Array:
    """Find the last statement about the address of each allocation while it was in use.

    Births and statements are sorted together by (address, instant): a statement belongs to the birth before
    it.

    *address* and *event* are those of each statement, such as a label. Returns its index by allocation; −1
    for none.
    """
    n = len(found)
    if not len(event):
        return np.full(n, -1, dtype="i8")
    place = np.concatenate([found.address, address])
    # A statement at instant e was made before event e happened, after those below e.
    moment = np.concatenate([2 * found.alloc_event, 2 * event - 1])
    order = np.lexsort((moment, place))
    birth_at = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
    row = np.flatnonzero((order >= n) & (birth_at >= 0))
    owner, at = order[birth_at[row]], order[row] - n
    end = found.completed_event[owner]
    fits = (found.address[owner] == address[at]) & ((end == ALIVE) | (end >= event[at]))
    owner, at = owner[fits], at[fits]
    last = np.full(n, -1, dtype="i8")
    made = np.lexsort((at, event[at]))
    last[owner[made]] = at[made]
    return last


ANALYSIS = asking("What are the allocated bytes for?", categories)
