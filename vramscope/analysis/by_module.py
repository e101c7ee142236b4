"""Assigns what was allocated at one instant to the modules of the model."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import Assigned, assign
from vramscope.analysis.categories.by_lifetime import Lives, lives_of
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.shared_results import memoized
from vramscope.analysis.timeline import instant_of
from vramscope.model.marks import ROOT_MODULE, Category, Labels, MarkKind, Marks, Phase
from vramscope.model.recording import Recording
from vramscope.model.table import Array, Int32, Int64, Table, UInt8, sums_of

NO_MODULE = ""


class ModuleEvidence(IntEnum):
    """The evidence that an allocation belongs to a module."""

    NOT = 0
    CALL = 1
    """The module was running: its forward, or the recompute of a checkpoint."""
    NAME = 2
    """The allocation is a parameter or buffer of the module, its gradient or its optimizer state."""
    NEXT_FREED = 3
    """An inference for backward: the saved activation that is freed next belongs to that module. A node of
    autograd frees what it saved as soon as it has run.
    """


@dataclass(frozen=True, slots=True)
class Owners(Table):
    """The module of each allocation: one row per row of ``lifetimes``."""

    module: Int32
    """Index into ``paths``; 0 for none."""
    known: UInt8
    """A ``ModuleEvidence``."""
    forward: Int64
    """Row of the saved activation that supports the inference for an allocation of backward (its stack is the
    line of the forward); −1 for none.
    """
    paths: tuple[str, ...] = (NO_MODULE,)
    called: frozenset[str] = frozenset()
    """Paths of the modules whose forward ran; none where the recording does not name them all."""


_MOST_GROUPS = 24


def same_depth(
    paths: tuple[str, ...], most: int = _MOST_GROUPS, enough: int = _MOST_GROUPS + 1
) -> tuple[tuple[str, ...], Array]:
    """Join modules at one depth of the model, so that their rows can be compared.

    They are cut at the first depth at which there are *enough* of them, else the greatest at which there are
    at most *most*. Returns them, and the index into them for each of *paths*. A module whose parts have rows
    of their own is named ``0 (itself)``.
    """
    parts = [tuple(path.split(".")) if path else () for path in paths]
    deepest = max(map(len, parts), default=0)
    depth = 1
    while depth < deepest and len({part[:depth] for part in parts}) < enough:
        if len({part[: depth + 1] for part in parts}) > most:
            break
        depth += 1
    inner = {part[:n] for part in parts for n in range(1, min(len(part), depth))}
    names = [".".join(part[:depth]) + (" (itself)" if part in inner else "") for part in parts]
    joined = tuple(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(joined)}
    return joined, np.array([number[name] for name in names], "i8")


@dataclass(frozen=True, slots=True)
class ModuleBytes(Table):
    """One row per module and kind of evidence, largest first; the bytes sum up to the allocated bytes."""

    module: Int32
    """Index into ``paths``; 0 for bytes of no module."""
    known: UInt8
    """A ``ModuleEvidence``."""
    bytes: Int64
    count: Int64
    """The number of blocks."""
    paths: tuple[str, ...] = (NO_MODULE,)
    instant: int = 0

    @property
    def totals(self) -> dict[str, int]:
        """Bytes by path, largest first; '' for bytes of no module."""
        found: dict[str, int] = {}
        for module, n_bytes in zip(self.module.tolist(), self.bytes.tolist(), strict=True):
            found[self.paths[module]] = found.get(self.paths[module], 0) + n_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def under(self, path: str) -> int:
        """Bytes of a module and of all modules within it."""
        return sum(n for name, n in self.totals.items() if name == path or name.startswith(f"{path}."))


def by_module(recording: Recording, instant: int | None = None) -> ModuleBytes:
    """Allocated bytes by module at one instant.

    Parameters
    ----------
    instant
        Number of events before the moment; None means the peak of allocated bytes.
    """
    found, at = lifetimes(recording), instant_of(recording, instant)
    owners = owners_of(recording, found, assign(recording, found))
    live = found.allocated_at(at)
    key = owners.module[live].astype("i8") * len(ModuleEvidence) + owners.known[live]
    group, row, count = np.unique(key, return_inverse=True, return_counts=True)
    n_bytes = sums_of(row, found.block_size[live], len(group))
    order = np.argsort(-n_bytes, kind="stable")
    return ModuleBytes.of(
        module=group[order] // len(ModuleEvidence),
        known=group[order] % len(ModuleEvidence),
        bytes=n_bytes[order],
        count=count[order],
        paths=owners.paths,
        instant=at,
    )


@memoized
def owners_of(recording: Recording, found: Allocations, assigned: Assigned) -> Owners:
    """The module of every allocation, by the best evidence: name, running call, what is freed next."""
    names, called = recording.marks.names, _running(recording.marks, found.alloc_event)
    is_workspace = assigned.category == Category.WORKSPACE
    # The first module that multiplies allocates the workspace, but all modules use it.
    called = np.where(is_workspace, 0, called)
    paths, named = _named(recording.labels, assigned, names)
    lives = lives_of(recording, found)
    forward = np.where(is_workspace, -1, _next_freed(lives, found, called))
    known = np.select(
        [named > 0, called > 0, forward >= 0],
        [ModuleEvidence.NAME, ModuleEvidence.CALL, ModuleEvidence.NEXT_FREED],
        ModuleEvidence.NOT,
    )
    module = np.select(
        [named > 0, called > 0, forward >= 0], [named, called, np.append(called, 0)[forward]], 0
    )
    forward = np.where(lives.phase == Phase.BACKWARD, forward, -1)
    return Owners.of(
        module=module, known=known, forward=forward, paths=paths, called=_called(recording.marks)
    )


def _called(marks: Marks) -> frozenset[str]:
    """The modules that have a mark; recordings of earlier versions lack those that allocate nothing."""
    of_modules = np.unique(marks.name[marks.kind == MarkKind.MODULE]).tolist()
    named = frozenset(marks.names[name] for name in of_modules)
    return named if ROOT_MODULE in named else frozenset()


def modules_at(marks: Marks, events: Array) -> tuple[str, ...]:
    """The path of the module that ran at each event; '' where none ran or none is known."""
    names = (NO_MODULE, *marks.names[1:])
    return tuple(names[index] for index in _running(marks, events).tolist())


def _running(marks: Marks, events: Array) -> Array:
    """The last MODULE mark before each event, as an index into the marks' names; 0 for none."""
    changes = marks.rows(marks.kind == MarkKind.MODULE)
    if not len(changes):
        return np.zeros(len(events), dtype="i8")
    last = np.searchsorted(changes.event, events, side="right") - 1
    has_name = np.array([name != NO_MODULE for name in marks.names])
    index = np.append(changes.name, 0)[last].astype("i8")
    return np.where((last >= 0) & (events >= 0) & has_name[index], index, 0)


_OWNED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.SHARDED_PARAMETER,
    Category.UNSHARDED_PARAMETER,
    Category.SHARDED_GRADIENT,
)


def _named(labels: Labels, assigned: Assigned, names: tuple[str, ...]) -> tuple[tuple[str, ...], Array]:
    """The module that each allocation's label names, as an index into *names* extended by further paths."""
    paths = {NO_MODULE: 0}
    for at, name in enumerate(names):
        paths.setdefault(name, at)
    listed = list(names) if names else [NO_MODULE]
    of = np.zeros(len(labels.names), dtype="i8")
    for at, name in enumerate(labels.names):
        path = _module_of(name)
        if path:
            if path not in paths:
                paths[path] = len(listed)
                listed.append(path)
            of[at] = paths[path]
    is_owned = (assigned.label >= 0) & np.isin(assigned.category, _OWNED)
    return tuple(listed), np.where(is_owned, np.append(of[labels.name], 0)[assigned.label], 0)


def _module_of(label: str) -> str:
    """``exp_avg of blocks.0.mlp.weight`` → ``blocks.0.mlp``; '' for a label without a parameter's name."""
    parameter = label.rpartition(" of ")[2]
    if not parameter or " " in parameter:
        return NO_MODULE
    return parameter.rpartition(".")[0] or ROOT_MODULE


def _next_freed(lives: Lives, found: Allocations, called: Array) -> Array:
    """The row that each allocation of backward is attributed to: made by a module's forward and freed next by
    this backward. None where what is freed next was made outside of all modules, as the loss is.
    """
    phase = np.append(lives.phases.phase, Phase.OTHER)
    is_made = (called > 0) | np.isin(lives.phase, (Phase.FORWARD, Phase.LOSS))
    saved = np.flatnonzero(is_made & (lives.freed_in >= 0) & (phase[lives.freed_in] == Phase.BACKWARD))
    saved = saved[np.argsort(lives.dies[saved], kind="stable")]
    following = np.searchsorted(lives.dies[saved], found.alloc_event)
    candidate = np.append(saved, -1)[following]
    same = (candidate >= 0) & (lives.freed_in[candidate] == lives.born_in) & (called[candidate] > 0)
    return np.where((lives.phase == Phase.BACKWARD) & same, candidate, -1)


ANALYSIS = asking("Which modules of the model hold what was allocated at one instant?", by_module)
