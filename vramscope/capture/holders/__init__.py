"""Finds what keeps tensors alive: walks from the program's names to every storage that they reach.

The walk is breadth first, from the locals of live frames and the globals of the program's modules, through
Python's objects and autograd's graph. It runs no code of other objects (no ``getattr`` on them, no unpacking
of saved tensors), ends at its deadline, and releases every reference before it returns.
"""

import gc
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import torch

from vramscope.capture.holders.code_places import file_of_class
from vramscope.capture.holders.containers import dict_of, global_hooks, hooks_of_tensor, kept_by_hooks
from vramscope.capture.holders.parts import ATOMS, ObjectParts, PlainData
from vramscope.capture.holders.reset import reset_of
from vramscope.capture.holders.roots import Word, named, of_modules
from vramscope.capture.holders.statement import carried, class_files
from vramscope.capture.holders.unnamed import held_without_name, is_iterator, is_own, words_of
from vramscope.capture.hooks import open_phases
from vramscope.capture.hooks.gradients import backwards, gradients_now, is_leaf
from vramscope.capture.storages import PLAIN, storages_of
from vramscope.capture.undisturbed.tracked import tracked_objects

_FIRST = (torch.Tensor, torch.nn.Module)
_MOST_CLOCK = 20
"""Longest time by the clock, in CPU times. With 4, a search on two cores at a load of 20 to 30 ended early,
and the cause of a reference cycle was unknown."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TO_BASE: Word = ("part", "view")


class Way(NamedTuple):
    """A storage and the steps that lead to it from a name of the program."""

    storage: Any
    words: tuple[Word, ...]
    class_files: tuple[str, ...] = ()
    """Files of the class whose attribute is or leads to the container, and of those that it inherits from."""
    view: tuple[Word, ...] = ()
    """``("view", shape, graph, bytes)`` where tensors with half of the storage's bytes or less reach it."""


class SearchResult(NamedTuple):
    """The storages that a search reached."""

    ways: list[Way]
    is_complete: bool
    """Whether the search finished before its deadline and before another thread began a phase."""


def search(
    seconds: float,
    frame: types.FrameType | None = None,
    *,
    at_end: bool = False,
    error: BaseException | None = None,
) -> SearchResult:
    """Find the shortest way to every storage that the program's names reach.

    It takes *seconds* of CPU time of this thread at most. By the clock it may take 20 times as long: only
    where other programs leave this thread a twentieth of a core, which slows every step by as much. *frame*
    is the innermost frame of the calling thread whose locals are searched. *error* is what ended the block,
    at its end. There only names lead to storages: what no name reaches then may have been in use until the
    program left its function.
    """
    # The objects that a walk creates would trigger collections, each of which traverses the whole heap.
    collects = gc.isenabled()
    try:
        gc.disable()
        walk = _HolderWalk(seconds, collects=collects, at_end=at_end)
        try:
            with torch._C.DisableTorchFunction():
                walk.run(named(frame, error))
                walk.run(of_modules(are_program=False))
                for roots in walk.unreached() if not at_end and not walk.is_late else ():
                    walk.run(roots)
                walk.reach_bases()
                return SearchResult(walk.ways(are_all_views=not at_end), not walk.is_late)
        finally:
            walk.forget()
    finally:
        if collects:
            gc.enable()


class _HolderWalk:
    """The objects reached so far, each with its predecessor and the step that leads from there."""

    def __init__(self, seconds: float, *, collects: bool, at_end: bool) -> None:
        self.is_late = False
        self._collects = collects
        self._ends_s = thread_time() + seconds
        self._deadline = perf_counter() + _MOST_CLOCK * seconds
        # A library may name all modules, as Triton does: theirs are looked through only where they are roots.
        self._met: dict[int, int] = {id(sys.modules): -1}
        self._objects: list[Any] = []
        self._before: list[int] = []
        self._words: list[Word] = []
        # Tensors come before other objects, since a data set in memory could take all of the time. So do
        # modules, whose hooks show what put a tensor into a list, since a trainer object could as well.
        self._first: deque[int] = deque()
        self._queue: deque[int] = deque()
        self._found: dict[int, tuple[Any, int]] = {}
        self._reached_bytes = defaultdict[int, int](int)
        self._bases: list[tuple[Any, int]] = []
        self._hooks: list[Any] = global_hooks()
        self._later: list[tuple[Any, int, Word]] = []
        self._defers = True
        # Before an end, an object that was not met would be taken for unreachable.
        plain = PlainData(self._is_over, self._opens) if at_end else PlainData(self._is_over)
        self._parts = ObjectParts(self._meet, self._met, plain)
        self._kinds: dict[type, Callable[[Any, int], None]] = {}
        self._backwards = set(backwards)
        self._n_begun = open_phases.state.n_begun

    def run(self, roots: Iterable[tuple[Any, Word]]) -> None:
        """Walk from *roots* to everything that they reach."""
        for thing, word in roots:
            self._meet(thing, -1, word)
        self._work_off()
        # A local variable may belong to the current step and hold the graph of earlier steps only
        # incidentally: whatever an attribute or a container holds as well is attributed to these.
        later, self._later = self._later, []
        # Variables that a loop carries from turn to turn come before those that it assigns in each turn.
        for is_local in (False, True):
            for node, before, word in later:
                if self._is_local_to_step(before) == is_local:
                    self._meet(node, before, word)
            self._work_off(defer=False)

    def _work_off(self, *, defer: bool = True) -> None:
        self._defers = defer
        first, queue, objects = self._first, self._queue, self._objects
        count = 0
        while (first or queue) and not self.is_late:
            if backwards.keys() != self._backwards or open_phases.state.n_begun != self._n_begun:
                # Another thread has begun to use torch, and its tensors may not be touched.
                self.is_late = True
                return
            at = first.popleft() if first else queue.popleft()
            thing = objects[at]
            expand = self._kinds.get(type(thing))
            if expand is None:
                expand = self._kinds[type(thing)] = self._expander(type(thing))
            expand(thing, at)
            count += 1
            if count % 64 == 0:
                self._is_over()

    def _is_over(self) -> bool:
        self.is_late = thread_time() > self._ends_s or perf_counter() > self._deadline
        return self.is_late

    def unreached(self) -> Iterator[list[tuple[Any, Word]]]:
        """Living objects that no name reaches: what statements hold, and cycles of Python and of autograd.

        What a ``for`` statement iterates over has no name, and is no cycle. The program's own objects come
        next, then parameters (which lead to their gradients), then other tensors.
        """
        ranks: tuple[list[Any], ...] = ([], [], [])
        for count, thing in enumerate(
            tracked_objects(lambda kind: _may_be_in_cycle(kind) or is_iterator(kind))
        ):
            if count % 4096 == 0 and self._is_over():
                return
            if id(thing) not in self._met and not is_own(thing):
                is_tensor = issubclass(type(thing), torch.Tensor)
                rank = is_tensor + (is_tensor and not issubclass(type(thing), torch.nn.Parameter))
                ranks[rank].append(thing)
        unnamed = held_without_name(ranks[0], self._met, self._is_over)
        if unnamed is None:
            return
        yield words_of(unnamed)
        self.reach_bases()
        state = () if self._collects else ("off",)
        for things in ranks:
            yield [
                (thing, ("unreachable", type(thing).__name__, *state))
                for thing in things
                if _may_be_in_cycle(type(thing))
            ]

    def reach_bases(self) -> None:
        """Walk on from the tensors that nothing but views of them led to."""
        while self._bases and not self.is_late:
            bases, self._bases = self._bases, []
            for base, view in bases:
                self._meet(base, view, _TO_BASE)
            self._work_off(defer=False)

    def ways(self, *, are_all_views: bool) -> list[Way]:
        """Return the way to every storage reached; with its views, where *are_all_views* that there are."""
        hooks, are_all_views = kept_by_hooks(self._hooks), are_all_views and not self.is_late
        return [self._way(storage, at, hooks, are_all_views) for storage, at in self._found.values()]

    def _view(self, storage: Any, at: int) -> tuple[Word, ...]:
        n_bytes, tensor = self._reached_bytes[storage._cdata], self._objects[at]
        if n_bytes == 0 or 2 * n_bytes > storage.nbytes():
            return ()
        is_only_one = tensor.nbytes == n_bytes
        shape, graph = str([*tensor.shape]) if is_only_one else "", "" if is_leaf(tensor) else "graph"
        return (("view", shape, graph, n_bytes),)

    def forget(self) -> None:
        """Release every reference, the newest first, as a stack would."""
        walked = self._later, self._queue, self._first, self._bases
        for kept in (self._found, self._hooks, *walked, self._kinds):
            kept.clear()
        while self._objects:
            self._objects.pop()

    def _meet(self, thing: Any, before: int, word: Word) -> None:
        if type(thing) in ATOMS or id(thing) in self._met:
            return
        self._met[id(thing)] = at = len(self._objects)
        self._objects.append(thing)
        self._before.append(before)
        self._words.append(word)
        # Not isinstance, which reads the object's __class__ and so may run its code.
        (self._first if issubclass(type(thing), _FIRST) else self._queue).append(at)

    def _expander(self, kind: type) -> Callable[[Any, int], None]:
        for base, expand in (
            (torch.Tensor, self._tensor),
            (torch.UntypedStorage, self._storage),
            (torch.nn.Module, self._module),
            (torch.optim.Optimizer, self._optimizer),
        ):
            if issubclass(kind, base):
                return expand
        return self._parts.expander(kind)

    def _opens(self, kind: type) -> bool:
        expand = self._kinds.get(kind) or self._expander(kind)
        return isinstance(expand, partial) or expand == self._parts.anything  # or with slots

    def _module(self, module: Any, at: int) -> None:
        namespace = dict_of(module) or {}
        for name in _HOOKS:
            hooks = namespace.get(name)
            if isinstance(hooks, dict):
                self._hooks.extend(hooks.values())
        # A module's own members are nearer than the dicts that torch keeps them in.
        for held in ("_parameters", "_buffers", "_modules"):
            if isinstance(namespace.get(held), dict):
                self._parts.attributes(namespace[held], at, type(module).__name__)
        self._parts.attributes(namespace, at, type(module).__name__)

    def _optimizer(self, optimizer: Any, at: int) -> None:
        namespace = dict_of(optimizer) or {}
        if issubclass(type(optimizer), torch.optim.LBFGS):
            # It has one group; in its state are lists of so many directions and changes of gradients.
            lists = [each for state in namespace["state"].values() for each in state.values()]
            self._parts.limits |= dict.fromkeys(map(id, lists), namespace["param_groups"][0]["history_size"])
        self._parts.attributes(namespace, at, type(optimizer).__name__, "optimizer")

    def _storage(self, storage: Any, at: int) -> None:
        self._found.setdefault(storage._cdata, (storage, at))
        self._reached_bytes[storage._cdata] += storage.nbytes()

    def _tensor(self, tensor: Any, at: int) -> None:
        storages, is_base = storages_of(tensor), self._words[at] == _TO_BASE
        # Of what a class of its own reads of a storage, nothing is sure.
        is_plain = type(tensor) in PLAIN and tensor.layout is torch.strided
        for storage in storages:
            self._found.setdefault(storage._cdata, (storage, at))
            if not is_base:
                self._reached_bytes[storage._cdata] += tensor.nbytes if is_plain else storage.nbytes()
        is_computed = is_leaf(tensor) is False
        if is_computed:
            word = ("graph", "", tensor.numel())
            if self._defers and self._words[self._variable_of(at)][0] in ("local", "global"):
                self._later.append((tensor.grad_fn, at, word))
            else:
                self._meet(tensor.grad_fn, at, word)
        self._hooks.extend(hooks_of_tensor(tensor))
        if is_leaf(tensor) or (is_computed and tensor.retains_grad):  # torch warns for tensors that have none
            for gradient in gradients_now((tensor,)):
                self._meet(gradient, at, ("grad", "grad"))
        base = tensor._base
        if base is not None:
            self._bases.append((base, at))
        namespace = dict_of(tensor)
        if namespace:
            self._parts.attributes(namespace, at, type(tensor).__name__)

    def _variable_of(self, at: int) -> int:
        """The variable that holds a tensor, a view of it, or a tuple that contains it."""
        while self._words[at] == _TO_BASE or self._words[at][::2] == ("item", "tuple"):
            at = self._before[at]
        return at

    def _is_local_to_step(self, at: int) -> bool:
        """Whether the loop assigns the variable in each turn and does not carry it to the next one."""
        kind, name, *place = self._words[self._variable_of(at)]
        function, file = place[:2] if kind == "local" else ("<module>", place[0])
        return name not in carried(str(file), str(function))

    def _way(self, storage: Any, at: int, hooks: dict[int, Word], are_all_views: bool) -> Way:
        words: list[Word] = []
        hook: Word | None = None
        view = self._view(storage, at) if are_all_views else ()
        things: list[Any] = []
        while at >= 0:
            words.append(self._words[at])
            things.append(self._objects[at])
            hook = hook or hooks.get(id(self._objects[at]))
            at = self._before[at]
        words.reverse()
        things.reverse()
        steps = (*_short(words), *([hook] if hook else []), *reset_of(words, things))
        return Way(storage, steps, class_files(words, things), view)


def _may_be_in_cycle(kind: type) -> bool:
    """Whether the kind is an exception, a tensor or a class of the program itself."""
    if issubclass(kind, torch.Tensor | BaseException):
        return True
    if issubclass(kind, type) or kind.__module__ in ("builtins", "types"):
        return False
    return bool(file_of_class(kind))


def _short(words: list[Word]) -> list[Word]:
    """Merge consecutive steps between nodes into one: their names with the number of repetitions."""
    found: list[Word] = []
    for are_nodes, steps in groupby(words, lambda word: word[0] == "node"):
        names = (
            [[name, len([*same])] for name, same in groupby(step[1] for step in steps)] if are_nodes else []
        )
        found += [("nodes", names[:8])] if are_nodes else steps
    return found
