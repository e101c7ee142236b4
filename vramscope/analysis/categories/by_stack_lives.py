"""What do the stacks of a file say a block was for, where nobody marked forward and backward?

A snapshot that a program saved itself knows no phases but its optimizers. Its stacks still tell which events
belong to a module's call, to autograd and to an optimizer. A category is given only where birth and death
both have their place; what dies where no stack tells the place stays unknown.
"""

import re
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.trace import Action

_PLACED = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.EVAL)


class Kind(IntEnum):
    """Where in a step a stack is."""

    ELSEWHERE = 0
    FORWARD = 1
    """In a module's call."""
    BACKWARD = 2
    RECOMPUTE = 3
    """In a module's call within backward."""
    OPTIMIZER = 4
    NONE = 5
    """No stack was recorded."""


_IN_BACKWARD = (Kind.BACKWARD, Kind.RECOMPUTE)


def is_bare(recording: Recording) -> bool:
    """Whether it is a file in which nobody marked forward and backward.

    What we record marks them, and keeps only the innermost frames: their outermost says nothing there.
    """
    return recording.source == "snapshot" and not np.isin(recording.phases.phase, _PLACED).any()


def by_stack(recording: Recording, found: Allocations) -> NDArray[Any]:
    """Category of every allocation; UNKNOWN where the stacks do not tell."""
    kind_of = _kinds(recording.stacks)
    if not np.isin(kind_of, (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER)).any():
        return np.zeros(len(found), dtype="u1")
    course = _Course(recording, found, kind_of)
    born_in = kind_of[found.stack_id]
    if course.silence_is_backward:
        born_in = np.where((found.stack_id == 0) & (found.alloc_event >= 0), Kind.BACKWARD, born_in)
    rules = _rules(course, found, born_in)
    categories: NDArray[Any] = np.select(
        [mask for mask, _ in rules], [value for _, value in rules], Category.UNKNOWN
    ).astype("u1")
    return categories


def is_closure(recording: Recording, phases: Phases) -> NDArray[Any]:
    """Which optimizer's steps ran the model themselves, by a closure: what is born there says nothing."""
    kind_of = _kinds(recording.stacks)
    is_model = np.isin(kind_of[recording.trace.stack_id], (Kind.FORWARD, *_IN_BACKWARD))
    before = np.append(0, np.cumsum(is_model & (recording.trace.action == Action.ALLOC)))
    start, end = (np.clip(at, 0, len(before) - 1) for at in (phases.start_event, phases.end_event))
    ran: NDArray[Any] = (before[end] > before[start]) & (phases.phase == Phase.OPTIMIZER)
    return ran


class _Course:
    """The events whose stack tells where they are, in order, and the runs of one kind among them."""

    def __init__(self, recording: Recording, found: Allocations, kind_of: NDArray[Any]) -> None:
        self.n_events = len(recording.trace)
        # Autograd's own threads have no frames of Python: silence among stacks without C++ is theirs.
        is_cpp = any("::" in text for text in recording.stacks.strings)
        self.silence_is_backward = not is_cpp and bool(np.isin(kind_of, (Kind.FORWARD,)).any())
        self.events, kinds = _placed_events(recording, found, kind_of)
        if self.silence_is_backward:
            kinds = np.where(kinds == Kind.NONE, Kind.BACKWARD, kinds)
        told = kinds != Kind.NONE
        self.events, self.kinds = self.events[told], kinds[told]
        in_backward = np.isin(self.kinds, _IN_BACKWARD)
        self.end_of_run = self._ends_of_runs(self.kinds)
        self.end_of_backward = self._ends_of_runs(in_backward)
        self.backward = self.events[in_backward]
        self.end_of_this_backward = self.end_of_backward[in_backward]
        self.forward = self.events[self.kinds == Kind.FORWARD]
        self.of_others = self.events[np.isin(self.kinds, (Kind.FORWARD, Kind.OPTIMIZER))]
        self.of_models = self.events[np.isin(self.kinds, (Kind.FORWARD, *_IN_BACKWARD))]

    def _ends_of_runs(self, kinds: NDArray[Any]) -> NDArray[Any]:
        """For each placed event the last one of the run of equal *kinds* that it lies in."""
        if not len(kinds):
            return self.events
        last = np.append(np.flatnonzero(np.diff(kinds.astype("i1"))), len(kinds) - 1)
        ends: NDArray[Any] = self.events[last[np.searchsorted(last, np.arange(len(kinds)))]]
        return ends

    def first_after(self, events: NDArray[Any], born: NDArray[Any]) -> NDArray[Any]:
        """The first of *events* after each birth; one past the last instant where there is none."""
        padded = np.append(events, self.n_events + 1)
        following: NDArray[Any] = padded[np.searchsorted(events, born, side="right")]
        return following

    def end_at(self, ends: NDArray[Any], events: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
        """The end of the run in which the event *at* lies, or the first of *events* not before it."""
        padded = np.append(ends, -1)
        end: NDArray[Any] = padded[np.searchsorted(events, at)]
        return end


def _rules(course: _Course, found: Allocations, born_in: NDArray[Any]) -> list[tuple[NDArray[Any], Category]]:
    """The first that fits decides."""
    born = found.alloc_event
    dies = np.where(found.free_event == ALIVE, course.n_events, found.free_event)
    is_new = (born >= 0) & (born_in != Kind.NONE)
    own_end = np.where(is_new, course.end_at(course.end_of_run, course.events, born), -1)
    end_of_all = np.where(is_new, course.end_at(course.end_of_backward, course.events, born), -1)
    within = is_new & (dies <= own_end)
    # What dies after the last event of its run and before the next may have died in either.
    outlives = is_new & (course.first_after(course.events, own_end) < dies)
    backward = course.first_after(course.backward, born)
    is_used = (backward < dies) & (
        dies <= course.end_at(course.end_of_this_backward, course.backward, backward)
    )
    forward = is_new & (born_in == Kind.FORWARD)
    # A loss written by hand; what comes before the forward is a batch.
    loss = is_new & (born_in == Kind.ELSEWHERE) & (course.first_after(course.forward, born) > backward)
    in_backward, again = is_new & (born_in == Kind.BACKWARD), is_new & (born_in == Kind.RECOMPUTE)
    is_left = (course.first_after(course.of_others, born) < dies) & (dies > end_of_all)
    optimizer = born_in == Kind.OPTIMIZER
    is_kept = course.first_after(course.of_models, born) < dies
    is_before_backward = backward <= course.n_events
    return [
        ((forward | loss) & is_used, Category.ACTIVATION),
        (again & outlives & (dies <= end_of_all), Category.ACTIVATION),
        (in_backward & is_left, Category.GRADIENT),
        (optimizer & is_kept, Category.OPTIMIZER_STATE),
        (within & (again | (is_new & optimizer)), Category.TEMPORARY),
        (in_backward & (dies <= end_of_all), Category.TEMPORARY),
        (forward & within & is_before_backward, Category.TEMPORARY),
    ]


def _placed_events(
    recording: Recording, found: Allocations, kind_of: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Events with the ``Kind`` of their stacks: allocations, and frees where these have stacks of their own.

    Where torch recorded no stacks for frees it repeats that of the allocation (DeviceCachingAllocator::free).
    """
    stack_id = recording.trace.stack_id
    freed = found.free_event >= 0
    of_free = stack_id[found.free_event[freed]]
    has_own = bool(((of_free != found.stack_id[freed]) & (of_free != 0)).any())
    actions = (Action.ALLOC, Action.FREE_REQUESTED) if has_own else (Action.ALLOC,)
    events = np.flatnonzero(np.isin(recording.trace.action, actions))
    return events, kind_of[stack_id[events]]


def _kinds(stacks: Stacks) -> NDArray[Any]:
    """The ``Kind`` of each stack, decided by its innermost frame that tells. A loop over frames."""
    own = _frame_kinds(stacks).tolist()
    found = [int(Kind.NONE)]
    for row, parent in enumerate(stacks.parent.tolist()[1:], 1):
        found.append(_inherited(own[row], found[parent] if parent else int(Kind.ELSEWHERE)))
    return np.array(found, dtype="i1")


_IS_TORCH, _IS_STRANGER = -1, -2


def _inherited(own: int, around: int) -> int:
    if own == Kind.FORWARD:
        return int(Kind.RECOMPUTE if around in _IN_BACKWARD else Kind.FORWARD)
    if own >= 0:
        return own
    # An optimizer's closure: what the program computes in there is no optimizer's.
    if own == _IS_STRANGER and around == Kind.OPTIMIZER:
        return int(Kind.ELSEWHERE)
    return around


# Frames that only run in backward: a checkpoint's second forward, and what autograd's own thread calls first.
_AGAIN = ("unpack_hook", "recompute_fn", "backward")
_CALLED_BY_AUTOGRAD = re.compile(r"torch/(?:autograd|utils/checkpoint|_functorch|_dynamo|distributed/fsdp)\b")


def _frame_kinds(stacks: Stacks) -> NDArray[Any]:
    """What each frame says by itself: a ``Kind``, torch's own code, or code of others."""
    files = [text.replace("\\", "/") for text in stacks.strings]
    engine = np.array(["autograd::Engine::" in text or text == "_engine_run_backward" for text in files])
    calls = np.array([text in ("_call_impl", "_wrapped_call_impl") for text in files])
    starts = np.array([text in ("backward", "grad") for text in files])
    module = np.array([text.endswith("torch/nn/modules/module.py") for text in files])
    autograd = np.array([text.endswith("torch/autograd/__init__.py") for text in files])
    optim = np.array(["/torch/optim/" in text and text.endswith(".py") for text in files])
    stranger = np.array([text.endswith(".py") and "/torch/" not in text for text in files])
    again = np.array([text in _AGAIN for text in files])
    checkpoint = np.array([text.endswith("torch/utils/checkpoint.py") for text in files])
    first = np.array([_CALLED_BY_AUTOGRAD.search(text) is not None for text in files])
    function, file = stacks.function, stacks.file
    in_autograd = (stacks.parent == 0) & first[file]
    kinds: NDArray[Any] = np.select(
        [
            engine[function] | (starts[function] & autograd[file]) | (again[function] & checkpoint[file]),
            calls[function] & module[file],
            optim[file],
            stranger[file],
            in_autograd,
        ],
        [Kind.BACKWARD, Kind.FORWARD, Kind.OPTIMIZER, _IS_STRANGER, Kind.BACKWARD],
        _IS_TORCH,
    )
    return kinds
