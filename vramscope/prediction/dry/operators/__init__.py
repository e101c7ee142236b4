"""What does an operator of torch take on CUDA beyond what it returns? ``operators.tsv`` says it, one a row.

A row names an operator without its overloads, and its effect: a function, in the file of its family, which
gives the extra memory of one call. Without one outputs are all it takes. Each row says where that is known
from, and a test holds it against torch's genuine allocator. An operator without a row makes a prediction an
estimate.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from vramscope import package_data
from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.placement import CurrentStream, PrivatePools


class OwnMemory(NamedTuple):
    """Memory of one call beyond its outputs, in bytes, in the order in which it is taken."""

    before: tuple[int, ...] = ()
    """Taken before the outputs, gone when the operator returns."""
    after: tuple[int, ...] = ()
    """Taken after the outputs, gone when the operator returns."""
    kept: tuple[int, ...] = ()
    """Taken after the outputs, and kept as long as the process lives."""
    order: tuple[int, ...] = ()
    """The outputs in the order in which they are made, where it is not the one in which they are returned."""
    plan: tuple[tuple[str, Any], ...] = ()
    """Where extra memory comes between outputs, or goes before the end: ``("made", index of the output)``,
    ``("made_as", (index, bytes of its storage))``, ``("taken", bytes)`` and ``("given", bytes)`` in their
    order; ``before``, ``after`` and ``order`` then say nothing."""
    perhaps: int = 0
    """So much may come on top while the operator runs."""
    doubt: tuple[Certainty, str] | None = None
    """Why this is not all that is to say."""


NOTHING = OwnMemory()


class RunSoFar:
    """What the operators of one run have met so far."""

    def __init__(self, card: Hardware) -> None:
        self.card = card
        self.operators: dict[str, int] = {}
        """Calls by name."""
        self.stream, self.pools = CurrentStream(), PrivatePools()
        self.handles: set[tuple[bool, int]] = set()
        self.lt_handles: set[tuple[bool, int]] = set()
        """The threads, backward's or not, with the streams on which they have a workspace of cuBLAS."""
        self.n_parts = 0
        """Layers that run now and are one operator on CUDA: what their parts take is more than they take."""
        self.has_random_states = False
        """Whether cuDNN's dropout has its random numbers, which it keeps."""
        self.reserve_bytes = 0
        """What cuDNN's batch normalization may keep for backwards to come."""

    @contextmanager
    def taken_as_parts(self) -> Iterator[None]:
        """A layer that is one operator on CUDA runs as several."""
        self.n_parts += 1
        try:
            yield
        finally:
            self.n_parts -= 1

    @property
    def is_backward(self) -> bool:
        """Whether this would run on autograd's own thread, with a cuBLAS handle of its own."""
        return torch._C._current_graph_task_id() != -1


class Call(NamedTuple):
    """One call of an operator, after it has returned."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any
    so_far: RunSoFar

    def given(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        for place, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if place < len(self.args):
                    return self.args[place]
                return argument.default_value if argument.has_default_value() else default
        return default


class Row(NamedTuple):
    """What ``operators.tsv`` says of an operator."""

    effect: Callable[[Call], OwnMemory] | None
    order: tuple[int, ...]
    """The value of ``OwnMemory.order``, where it is the same in every call."""


@cache
def rows() -> Mapping[str, Row]:
    """Every row, by the operator's name."""
    found: dict[str, Row] = {}
    for name, effect, order, _ in package_data.rows(__file__, "operators.tsv"):
        family, _, function = effect.partition(".")
        run = getattr(import_module(f"{__name__}.{family}"), function) if effect else None
        found[name] = Row(run, tuple(map(int, order.split(","))) if order else ())
    return found


def own_memory_of(func: Any, args: Any, kwargs: Any, out: Any, so_far: RunSoFar) -> OwnMemory:
    """What this call takes beyond its outputs."""
    name = func._schema.name
    so_far.operators[name] = so_far.operators.get(name, 0) + 1
    if so_far.pools.capturing and torch.Tag.nondeterministic_seeded in func.tags:
        so_far.pools.is_random = True
    row = rows().get(name)
    if row is not None:
        extra = NOTHING if row.effect is None else row.effect(Call(func, args, kwargs, out, so_far))
        return extra._replace(order=row.order) if row.order else extra
    if _is_plain(func):
        return NOTHING
    # A copy of all it is given and returns, and as much again in a wider type, is more than any known.
    return OwnMemory(doubt=_UNKNOWN, perhaps=3 * _bytes_of((*args, *kwargs.values(), out)))


_UNKNOWN = (Certainty.ESTIMATE, "what it takes on CUDA beyond its outputs is not in the table")


def _bytes_of(values: Any) -> int:
    found = 0
    for one in values:
        if isinstance(one, torch.Tensor):
            found += one.numel() * one.element_size()
        elif isinstance(one, list | tuple):
            found += _bytes_of(one)
    return found


@cache
def _is_plain(func: Any) -> bool:
    """Views take nothing, and what works element by element takes its outputs: CUDA casts on the way."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    returns = func._schema.returns
    is_view = bool(returns) and all(
        one.alias_info is not None and not one.alias_info.is_write for one in returns
    )
    return is_view or torch.Tag.pointwise in func.tags
