"""Folds stacks to the lines of the user's own code: frames of libraries, Python and C++ are hidden.

One rule serves every view. A file is the user's unless its path says otherwise: installed packages lie in
``site-packages`` or ``dist-packages``, Python's library in ``lib/python3.x``, C and C++ have their suffixes.
A path may come from another machine, so nothing is looked up on this one. Libraries that run from a
checkout (an editable install of transformers, torch built from source) are recognized by their layout, and
folded only where another file is the user's: if somebody works on transformers, these files are the program.

On CUDA backward runs on a thread of autograd, without Python frames, while the calling thread waits in one
line. That line is known if the call itself
makes the first gradient (of ones) just before.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.shared_results import kept
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame, StackBuilder, Stacks
from vramscope.model.table import Array, sums_of
from vramscope.package_data import rows


class Origin(IntEnum):
    """The author of a file, as far as its path shows."""

    USER = 0
    PACKAGE = 1
    """An installed package, or the checkout of one."""
    TORCH = 2
    """torch and its parts: functorch, torchgen, triton."""
    RUNTIME = 3
    """Python, C++, notebooks and debuggers, vramscope itself: no view names them as a culprit."""


def _pattern(kind: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Return one expression of all that ``folding.tsv`` lists for a kind of file."""
    return re.compile("|".join(row[0] for row in rows(__file__, "folding.tsv", kind)), flags)


_RUNTIME, _TORCH, _LOOSE_TORCH, _PACKAGE, _CHECKOUT = map(
    _pattern, ("runtime", "torch", "loose_torch", "package", "checkout")
)
_OURSELVES = _pattern("ourselves", re.RegexFlag(0))
_TEXT, _SPAWN = "<string>", "/multiprocessing/"
_METHODS = frozenset({"forward", "__init__", "_pre_forward"})
"""Functions that are named with their file: ``linear.forward``. FSDP and DDP both have the last one."""
PLUMBING = frozenset(row[0] for row in rows(__file__, "folding.tsv", "plumbing"))
"""Functions of libraries that only pass a call on: their names do not show which function was called."""


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Stacks without the frames of libraries."""

    stacks: Stacks
    """The user's frames; from node ``first_library`` on frames of libraries."""
    of: Array
    """The node of the user's innermost frame, by original stack_id; 0 where there is none."""
    via: Array
    """Index into ``strings`` of the library function called last that is more than plumbing, by original
    stack_id; 0 where there is none.
    """
    strings: tuple[str, ...]
    library: Array
    """The node of the outermost library frame where no frame is the user's, by original stack_id; else 0."""
    first_library: int
    reads_as: Array
    """A number, by node of ``stacks``, that nodes with the same frame and calling frame share."""

    @property
    def place(self) -> Array:
        """The node to name, by original stack_id: the user's frame, else the library's; 0 for neither."""
        return np.where(self.of > 0, self.of, self.library)

    @property
    def line_of_stack(self) -> Array:
        """A number, by original stack_id, that stacks of the same named file and line share; 0 for none."""
        stacks = self.stacks
        lines = np.stack([stacks.file, stacks.line], axis=1)
        number = np.unique(lines[1:], axis=0, return_inverse=True)[1].reshape(-1)
        return np.append(0, number + 1)[self.place]

    def is_library(self, node: int) -> bool:
        """Whether a node of ``stacks`` is a library's frame, named because no frame is the user's."""
        return node >= self.first_library

    def frame(self, stack_id: int) -> Frame | None:
        """The frame to name for an original stack, as in ``place``; None where there is none."""
        node = int(self.of[stack_id]) or int(self.library[stack_id])
        return self.stacks.frame(node) if node else None


class LargestLine(NamedTuple):
    """The live bytes of one line."""

    folded_id: int
    """A node of the line, as in ``Folded.place``."""
    n_bytes: int
    example: int
    """The original stack_id that holds most of it."""


@dataclass(frozen=True, slots=True, eq=False)
class BytesByLine:
    """Live bytes by the user's line: one row per (line, caller, library function), largest first."""

    folded_id: Array
    """The node of ``example``, as in ``Folded.place``."""
    via: Array
    """Index into ``Folded.strings``."""
    n_bytes: Array
    count: Array
    example: Array
    """The original stack_id that holds most of the row."""

    @property
    def total_bytes(self) -> int:
        """All live bytes, in sum."""
        return int(self.n_bytes.sum())

    def most(self, folded: Folded) -> LargestLine | None:
        """Return the line that holds most, from whatever caller; None where no stack is known."""
        known = np.flatnonzero(self.folded_id > 0)
        if not len(known):
            return None
        node, stacks = self.folded_id[known], folded.stacks
        frames = np.stack([stacks.function[node], stacks.file[node], stacks.line[node]], axis=1)
        line = np.unique(frames, axis=0, return_inverse=True)[1].reshape(-1)
        total = sums_of(line, self.n_bytes[known], int(line.max()) + 1)
        # Rows are in the order of their bytes: the first row of a line is its largest.
        row = int(known[int(total[line].argmax())])
        return LargestLine(int(self.folded_id[row]), int(total.max()), int(self.example[row]))


def origin(file: str) -> Origin:
    """The author of a file, as far as its path alone shows."""
    path = file.replace("\\", "/")
    if _RUNTIME.search(path) or _OURSELVES.search(path):
        return Origin.RUNTIME
    if _TORCH.search(path):
        return Origin.TORCH
    return Origin.PACKAGE if _PACKAGE.search(path) else Origin.USER


def origins(stacks: Stacks) -> Array:
    """The ``Origin`` of every string of *stacks* that is a file; of other strings it has no meaning."""
    found = np.array([origin(text) for text in stacks.strings] or [Origin.RUNTIME])
    is_file = np.zeros(len(found), "?")
    is_file[stacks.file] = True
    if _is_program_of_a_text(stacks):
        found[stacks.strings.index(_TEXT)] = Origin.USER
    if not (is_file & (found == Origin.TORCH)).any():
        _refine(found, is_file, stacks.strings, _LOOSE_TORCH, Origin.TORCH)
    _refine(found, is_file, stacks.strings, _CHECKOUT, Origin.PACKAGE)
    return found


def _is_program_of_a_text(stacks: Stacks) -> bool:
    """Whether the program was given as a text (``python -c``), so that the file ``<string>`` is the user's.

    Elsewhere that file is code that a library generated. Children of ``multiprocessing`` begin with a text,
    too.
    """
    if _TEXT not in stacks.strings or "<module>" not in stacks.strings:
        return False
    text, module = stacks.strings.index(_TEXT), stacks.strings.index("<module>")
    begins = (stacks.parent == 0) & (stacks.file == text) & (stacks.function == module)
    begins[0] = False
    called = stacks.file[begins[stacks.parent]]
    is_spawned = any(_SPAWN in stacks.strings[file].replace("\\", "/") for file in np.unique(called).tolist())
    return bool(begins.any()) and not is_spawned


def user_files(stacks: Stacks) -> frozenset[str]:
    """The user's files among those that *stacks* name."""
    files = np.unique(stacks.file)
    who = origins(stacks)[files]
    return frozenset(stacks.strings[i] for i in files[who == Origin.USER].tolist())


def _refine(
    found: Array, is_file: Array, strings: tuple[str, ...], pattern: re.Pattern[str], new: Origin
) -> None:
    """Set the origin of the user's files that match *pattern* to *new*, unless all of them match it."""
    user = np.flatnonzero(is_file & (found == Origin.USER))
    matches = np.array([pattern.search(strings[i].replace("\\", "/")) is not None for i in user], "?")
    if not matches.all() or new is Origin.TORCH:
        found[user[matches]] = new


@kept
def fold(stacks: Stacks) -> Folded:
    """Fold all stacks in one pass over the frames, about 1 µs each: parents precede their children."""
    who = origins(stacks)
    has_user = bool((who[stacks.file[1:]] == Origin.USER).any())
    # Where no file is the user's, the model library's line is more informative than the launcher's.
    ours = (who == (Origin.USER if has_user else Origin.PACKAGE)).tolist()
    python = [text.endswith(".py") for text in stacks.strings]
    speaks = [text not in PLUMBING for text in stacks.strings]
    # `forward` alone does not tell a linear layer from a norm, nor `__init__` its parameters from those
    # of an embedding: the file's name does.
    methods: dict[str, int] = {}
    builder = StackBuilder()
    of, via = [0], [0]
    columns = (stacks.parent, stacks.function, stacks.file, stacks.line)
    for parent, function, file, line in zip(*(column[1:].tolist() for column in columns), strict=True):
        if ours[file]:
            of.append(builder.push(of[parent], stacks.strings[function], stacks.strings[file], line))
            via.append(0)
        else:
            of.append(of[parent])
            if not (python[file] and speaks[function]):
                via.append(via[parent])
                continue
            name = stacks.strings[function]
            if name in _METHODS:
                stem = stacks.strings[file].replace("\\", "/").rpartition("/")[2].removesuffix(".py")
                via.append(methods.setdefault(f"{stem}.{name}", len(stacks.strings) + len(methods)))
            else:
                via.append(function)
    first_library = len(builder) if has_user else 1
    own = np.array(of)
    library = _outermost_library(stacks, who, own, builder)
    shown, strings = builder.build(), (*stacks.strings, *methods)
    return Folded(shown, own, np.array(via), strings, library, first_library, _reads_as(shown))


def _outermost_library(stacks: Stacks, who: Array, own: Array, builder: StackBuilder) -> Array:
    """Compute ``Folded.library`` and add its frames to *builder*: a package's frame, else torch's."""
    outermost = {which: _outermost(stacks, who == which) for which in (Origin.TORCH, Origin.PACKAGE)}
    chosen = np.where(outermost[Origin.PACKAGE] > 0, outermost[Origin.PACKAGE], outermost[Origin.TORCH])
    chosen[own > 0] = 0
    frames, which = np.unique(chosen, return_inverse=True)
    nodes = [builder.push(0, *stacks.frame(frame)) if frame else 0 for frame in frames.tolist()]
    return np.array(nodes)[which.reshape(-1)]


def _outermost(stacks: Stacks, is_meant: Array) -> Array:
    """The node of each stack's outermost frame in a matching file; 0 where none matches."""
    found = [0]
    meant = is_meant[stacks.file].tolist()
    for node, parent in enumerate(stacks.parent[1:].tolist(), start=1):
        found.append(found[parent] or (node if meant[node] else 0))
    return np.array(found)


def heaviest_line(stacks: Stacks, stack_id: Array, n_bytes: Array) -> Frame | None:
    """The user's line with most of the bytes, which are given by stack; None where no stack has one."""
    folded = fold(stacks)
    weight = np.bincount(folded.of[stack_id], weights=n_bytes, minlength=1)
    weight[0] = 0
    return folded.stacks.frame(int(weight.argmax())) if weight.any() else None


def bytes_by_line(folded: Folded, stack_id: Array, n_bytes: Array, count: Array) -> BytesByLine:
    """Join the rows of original stacks that read the same: line, caller, and function called there."""
    place = folded.place
    pairs = np.stack([folded.reads_as[place[stack_id]], folded.via[stack_id]], axis=1).reshape(-1, 2)
    unique, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    total, number = (sums_of(group, column, len(unique)) for column in (n_bytes, count))
    example = np.zeros(len(unique), "i8")
    by_size = np.argsort(n_bytes, kind="stable")
    example[group[by_size]] = stack_id[by_size]
    order = np.argsort(-total, kind="stable")
    example = example[order]
    return BytesByLine(place[example], unique[order, 1], total[order], number[order], example)


def _reads_as(stacks: Stacks) -> Array:
    """A number, by node, that nodes of the same frame and the same calling frame share; 0 for no node."""
    frames = np.stack([stacks.function, stacks.file, stacks.line], axis=1)
    both = np.concatenate([frames, frames[stacks.parent], np.arange(len(stacks))[:, None] > 0], axis=1)
    return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)


def passes_through(stacks: Stacks, function: str, file: str = "") -> Array:
    """Return for each stack whether any of its frames is in a function named *function*; 0.1 µs a stack.

    A *file* is the end of the path that the frame has to be in as well.

    The result is a bool array of shape ``(n_stacks,)``.
    """
    return with_callees(stacks, functions_named(stacks, {function}) & files_ending(stacks, file))


def functions_named(stacks: Stacks, names: Collection[str]) -> Array:
    """Return for each frame whether its function is one of *names*."""
    return np.array([text in names for text in stacks.strings], bool)[stacks.function]


def files_ending(stacks: Stacks, ends: str | tuple[str, ...]) -> Array:
    """Return for each frame whether the path of its file ends so; its parts have slashes between them."""
    fits = [text.replace("\\", "/").endswith(ends) for text in stacks.strings]
    return np.array(fits, bool)[stacks.file]


def with_callees(stacks: Stacks, found: Array) -> Array:
    """Mark in *found* what is called by any that is marked, too, and return it."""
    above = stacks.parent
    # Pointers jump twice as far each round, so few rounds do.
    while above.any():
        found |= found[above]
        above = above[above]
    return found


def calls_of_backward(recording: Recording, found: Allocations, own: Array, events: Array) -> Array:
    """Return the folded stack of the backward call in which each event happened, or 0.

    The loop runs over phases, not over allocations.

    *own* has the folded stack of each allocation, 0 for none; *events* may have any order.
    """
    call = np.zeros(len(events), dtype=own.dtype)
    phases = recording.phases
    backward = np.flatnonzero(phases.phase == Phase.BACKWARD)
    if not len(backward) or not len(events):
        return call
    order = np.argsort(events, kind="stable")
    event = events[order]
    # There ``torch.autograd.backward`` is about to begin.
    rows = np.flatnonzero(passes_through(recording.stacks, "_make_grads")[found.stack_id] & (own > 0))
    rows = rows[np.argsort(found.alloc_event[rows], kind="stable")]
    called, earliest = found.alloc_event[rows], 0
    for row in backward[np.argsort(phases.start_event[backward], kind="stable")].tolist():
        first, end = int(phases.start_event[row]), int(phases.end_event[row])
        start, stop = np.searchsorted(event, [first, end])
        last = int(np.searchsorted(called, first)) - 1
        # A call before the previous backward does not count: here the caller passed the first gradient.
        is_its_own = last >= 0 and called[last] >= earliest
        call[order[start:stop]] = own[rows[last]] if is_its_own else 0
        earliest = end
    return call
