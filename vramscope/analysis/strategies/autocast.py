"""StrategyTrial of autocast to 16 bits in forward: which allocations halve, and which copies are added.

The innermost frame within torch decides how autocast treats a tensor. Matrix products (linear layers,
convolutions, attention) give 16 bits; norms, softmax and losses stay at 32; operations in between follow
their input. The rules are those of ``torch.autocast("cuda", dtype=torch.bfloat16)``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import GRANULE
from vramscope.analysis.by_module import ModuleEvidence, Owners
from vramscope.analysis.categories import Assigned
from vramscope.analysis.categories.by_lifetime import Lives
from vramscope.analysis.categories.by_stack_frame import WORKSPACES
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, Phase
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.trace import Action

HALF = 0.5
_FORWARD = (Phase.FORWARD, Phase.LOSS, Phase.RECOMPUTE, Phase.EVAL)
_BOTH = 1.5
"""Factor of a tensor that keeps 32 bits, with a copy of 16 beside it."""
_SMALL = 32
"""Ratio of a tensor to the next one above which the next holds statistics, which say nothing about types."""
_A_WEIGHT = 1 << 16
"""Least bytes of a weight to check whether copies exist already; the largest weight, if all are smaller."""


_FIXED = (
    Category.PARAMETER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.BUFFER,
    Category.INPUT,
    Category.WORKSPACE,
)
"""Categories that autocast leaves as they are."""
_RNN = "rnn.py"
_RECURRENT = 10
"""More than one part in this many of forward's bytes from recurrent layers allows no prediction."""


class CastKind(IntEnum):
    """How autocast treats the result of an operation."""

    OTHER = 0
    """The result has the widest type of its inputs."""
    LOW = 1
    """The result has 16 bits."""
    WIDE = 2
    """The result has 32 bits."""
    NORM = 3
    """The result has 32 bits, but the product after it keeps a copy of 16 instead."""
    SOFTMAX = 4
    """The result has 32 bits, and the product after it keeps a copy of 16 as well."""
    FOLLOWS = 5
    """The result has the type of its input."""
    DROPOUT = 6
    """The result has the type of its input, and there is a mask of a byte for each element."""


_BY_FILE = {
    "linear.py": CastKind.LOW,
    "conv.py": CastKind.LOW,
    _RNN: CastKind.LOW,
    "sparse.py": CastKind.WIDE,
    "normalization.py": CastKind.NORM,
    "loss.py": CastKind.WIDE,
    "batchnorm.py": CastKind.FOLLOWS,
    "activation.py": CastKind.FOLLOWS,
    "pooling.py": CastKind.FOLLOWS,
    "dropout.py": CastKind.DROPOUT,
}
"""Kinds of the files in torch/nn/modules."""
_BY_FUNCTION = {
    "_in_projection_packed": CastKind.LOW,
    "_in_projection": CastKind.LOW,
    "multi_head_attention_forward": CastKind.LOW,
    "embedding": CastKind.WIDE,
    "cross_entropy": CastKind.WIDE,
    "nll_loss": CastKind.WIDE,
    "mse_loss": CastKind.WIDE,
    "log_softmax": CastKind.WIDE,
    "layer_norm": CastKind.NORM,
    "group_norm": CastKind.NORM,
    "softmax": CastKind.SOFTMAX,
    "dropout": CastKind.DROPOUT,
} | dict.fromkeys(
    ("relu", "gelu", "silu", "leaky_relu", "elu", "batch_norm", "_max_pool2d", "interpolate"),
    CastKind.FOLLOWS,
)
"""Kinds of the functions in torch/nn/functional.py."""


@dataclass(frozen=True, slots=True, eq=False)
class Autocast:
    """The changes that autocast would make to the allocations of a run."""

    factor: NDArray[Any]
    """Factor on the size of each allocation."""
    least: NDArray[Any]
    """The same if every operation that the program calls itself gave 16 bits."""
    most: NDArray[Any]
    """The same if all of these stayed at 32 bits, with a copy of 16 beside them."""
    born: NDArray[Any]
    """First instant of each additional copy."""
    dies: NDArray[Any]
    """First instant without the copy."""
    n_bytes: NDArray[Any]
    """Bytes of the copy."""


def autocast(
    stacks: Stacks, found: Allocations, lives: Lives, owners: Owners, assigned: Assigned, action: NDArray[Any]
) -> Autocast | None:
    """Return the changes that autocast would make.

    None if the operations are not known, if copies of 16 bits exist already, or with recurrent layers.
    """
    rows = np.flatnonzero(np.isin(lives.phase, _FORWARD) & (found.alloc_event >= 0))
    kinds = {each: _kind(stacks, each) for each in set(found.stack_id[rows].tolist())}
    kind = np.array([kinds[each] for each in found.stack_id[rows].tolist()], dtype="i8")
    is_low = kind == CastKind.LOW
    weights = _weights(found, owners, assigned, rows[is_low])
    if not is_low.any() or _is_on(found, owners, rows[is_low], weights) or _is_recurrent(stacks, found, rows):
        return None
    factor = np.ones(len(found))
    seen = list(_factors(found, rows, kind, action))
    factor[rows] = [scale for scale, _ in seen]
    cast = np.flatnonzero([is_cast for _, is_cast in seen])
    _follow_backward(lives, owners, assigned, factor, np.isin(found.size, found.size[rows]))
    copies = [_weight_copies(found, lives, owners, weights, rows[is_low])]
    copies.append(_input_copies(found, lives, assigned, (rows, kind)))
    copies.append(_casts(found, (rows, kind)))
    copies.append(_originals(found, owners, rows, cast))
    copies.append(_of_losses(found, lives, assigned, (rows, kind), factor))
    is_workspace = np.isin(found.size, WORKSPACES) & (assigned.category != Category.ACTIVATION)
    factor[is_workspace | (assigned.category == Category.WORKSPACE)] = 1.0
    least, most = _bounds(found, lives, owners, assigned, factor, (rows, kind))
    return Autocast(factor, least, most, *(np.concatenate(column) for column in zip(*copies, strict=True)))


def is_of_own_line(stacks: Stacks, found: Allocations, lives: Lives, owners: Owners) -> NDArray[Any]:
    """Return which allocations operations of the program's own lines made, or operations on their results.

    These may hold a value for each pair of a batch, or the same values for every batch, where layers of
    torch.nn have one row for each sample. In backward they are those made for such or for unknown forwards.
    """
    open_kinds = (CastKind.OTHER, CastKind.SOFTMAX, CastKind.WIDE)
    kinds = {each: _kind(stacks, each) in open_kinds for each in set(found.stack_id.tolist())}
    is_open = np.array([kinds[each] for each in found.stack_id.tolist()], dtype="?")
    in_backward = lives.phase == Phase.BACKWARD
    is_open[in_backward] = np.append(is_open, True)[owners.forward[in_backward]]
    return is_open


def _kind(stacks: Stacks, stack_id: int) -> CastKind:
    folder, name, function = _asked_by(stacks, stack_id)
    if folder.endswith("torch/nn/modules"):
        return _BY_FILE.get(name, CastKind.OTHER)
    if folder.endswith("torch/nn") and name == "functional.py":
        return _BY_FUNCTION.get(function, CastKind.OTHER)
    return CastKind.OTHER


def _asked_by(stacks: Stacks, stack_id: int) -> tuple[str, str, str]:
    """Return folder, file and function of the innermost frame."""
    frame = stacks.frame(stack_id) if stack_id else Frame("", "", 0)
    folder, _, name = frame.file.replace("\\", "/").rpartition("/")
    return folder, name, frame.function


def _is_recurrent(stacks: Stacks, found: Allocations, rows: NDArray[Any]) -> bool:
    """Return whether recurrent layers are a large part of forward.

    cuDNN runs these as a whole, other implementations step by step, so they are not predicted.
    """
    ids, n_bytes = found.stack_id[rows], found.block_size[rows]
    mine = [each for each in set(ids.tolist()) if _asked_by(stacks, each)[1] == _RNN]
    return bool(_RECURRENT * n_bytes[np.isin(ids, mine)].sum() > n_bytes.sum())


# -------------------------------------------------------------------------- allocations that halve


def _factors(
    found: Allocations, rows: NDArray[Any], kind: NDArray[Any], action: NDArray[Any]
) -> Iterator[tuple[float, bool]]:
    """Yield the factor of each row, and whether it has 32 bits first and only a copy of 16 is kept.

    Rows are in the order of the program: the tensors that have 32 bits when a row is made decide its type.
    """
    wide_until: dict[int, int] = {}  # by size, when the last such tensor of 32 bits goes
    wide_ends: set[int] = set()
    is_low, before, is_product = False, 0, False
    sizes, ends = found.block_size[rows].tolist(), found.free_event[rows].tolist()
    events = found.alloc_event[rows].tolist()
    freed = _freed_size(found, len(action))
    kinds, scratch = kind.tolist(), _is_scratch(found, rows).tolist()
    following = _following(sizes, kinds, scratch)
    for size, end, event, what, own, (then, size_then) in zip(
        sizes, ends, events, kinds, scratch, following, strict=True
    ):
        if own:
            yield HALF if what == CastKind.LOW else 1.0, False
            continue
        if _SMALL * size < before:
            yield 1.0, False
            continue
        if (what == CastKind.DROPOUT and size * 4 == before) or (
            what == CastKind.FOLLOWS and size == 2 * before
        ):
            yield 1.0, False  # a mask of one byte per element; indices of maxima of eight
            continue
        takes, is_softmax = False, what == CastKind.SOFTMAX
        if what in (CastKind.LOW, CastKind.WIDE, CastKind.NORM, CastKind.SOFTMAX):
            is_low = what == CastKind.LOW
        elif what == CastKind.OTHER:
            until = _next_alloc(action, event)
            takes = size in freed[event + 1 : until]
            # A sum frees one of its inputs at once, and another input of 32 bits is still live.
            is_sum = takes and wide_until.get(size, -1) > event
            is_joined = wide_until.get(size - before, -1) > event  # the last tensor and one of 32 bits
            is_low = not (is_sum or is_joined or wide_ends.intersection(range(event + 1, until)))
            # A product that the program makes itself and an operation on it: attention written out.
            is_softmax = is_low and takes and is_product and size == before
        is_product = what == CastKind.OTHER and is_low and not takes
        before = size
        if not is_low:
            forever = len(action) if end == ALIVE else end
            wide_until[size] = max(wide_until.get(size, -1), forever)
            wide_ends.add(end)
        if what == CastKind.LOW and then == CastKind.NORM and size == size_then:
            yield 1.0, False  # the norm takes a copy of 32 bits, and keeps that
            continue
        is_cast = not is_low and _is_cast(what, then)
        yield 1.5 if is_softmax else HALF if is_low or is_cast else 1.0, is_cast


def _bounds(
    found: Allocations,
    lives: Lives,
    owners: Owners,
    assigned: Assigned,
    factor: NDArray[Any],
    forward: tuple[NDArray[Any], NDArray[Any]],
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the most factor: which operation takes a result is not recorded.

    A value of 32 bits keeps at least 16 of them. It keeps both, one and a half of its size, unless
    a layer of torch.nn that computes in 16 bits made it and another one comes next.
    """
    rows, kind = forward
    least, most = factor.copy(), factor.copy()
    least[rows] = HALF
    most[rows] = np.where(_stays_low(found, rows, kind), HALF, _BOTH)
    least[rows[_is_scratch(found, rows)]] = 0
    fixed = np.isin(assigned.category, _FIXED)
    # Backward makes activations too, where a gradient is part of the loss.
    in_backward = (lives.phase == Phase.BACKWARD) & ~fixed
    least[in_backward] = HALF
    most[in_backward] = _most_of_gradients(found, owners, most, rows, np.flatnonzero(in_backward))
    least[fixed], most[fixed] = 1.0, 1.0
    return least, most


def _most_of_gradients(
    found: Allocations, owners: Owners, most: NDArray[Any], rows: NDArray[Any], gradients: NDArray[Any]
) -> NDArray[Any]:
    """Return the most factor of backward's temporaries: a gradient has the type of its tensor in forward.

    Which tensor that is decide the module, or the size where all tensors of that size have 16 bits.
    """
    sizes, at = np.unique(found.size[rows], return_inverse=True)
    worst = np.zeros(len(sizes) + 1)
    np.maximum.at(worst, at.reshape(-1), most[rows])
    place = np.minimum(np.searchsorted(sizes, found.size[gradients]), max(len(sizes) - 1, 0))
    is_known = sizes[place] == found.size[gradients]
    of = owners.forward[gradients]
    by_owner = np.where(of >= 0, np.maximum(most[of], 1.0), _BOTH)
    is_low = is_known & ((worst[place] == HALF) | ((of >= 0) & (most[of] == HALF)))
    found_most: NDArray[Any] = np.where(is_low, HALF, by_owner)
    return found_most


def _stays_low(found: Allocations, rows: NDArray[Any], kind: NDArray[Any]) -> NDArray[Any]:
    """Return which rows have 16 bits for certain, and need no copy of 32.

    A layer that computes in 16 bits made the row, or one that follows such a layer, and the layer that
    comes next does either.
    """
    follows = np.isin(kind, (CastKind.FOLLOWS, CastKind.DROPOUT))
    last = np.maximum.accumulate(np.where(follows, -1, np.arange(len(kind))))
    is_low = (kind == CastKind.LOW) | (follows & (last >= 0) & (kind[last] == CastKind.LOW))
    then = _next_kind(found, rows, kind)
    stays: NDArray[Any] = is_low & np.isin(then, (CastKind.LOW, CastKind.FOLLOWS, CastKind.DROPOUT))
    return stays


def _next_kind(found: Allocations, rows: NDArray[Any], kind: NDArray[Any]) -> NDArray[Any]:
    following = _following(found.block_size[rows].tolist(), kind.tolist(), _is_scratch(found, rows).tolist())
    return np.array([then for then, _ in following], dtype="i8")


def _is_cast(what: int, then: int) -> bool:
    """Return whether only a 16-bit copy of a 32-bit tensor is kept, since a product takes it."""
    if what == CastKind.NORM:
        return then not in (CastKind.FOLLOWS, CastKind.DROPOUT, CastKind.WIDE)
    return what in (CastKind.OTHER, CastKind.FOLLOWS) and then == CastKind.LOW


def _is_scratch(found: Allocations, rows: NDArray[Any]) -> NDArray[Any]:
    """Return which rows are workspaces: an operation frees them after it has made its result."""
    stack, free = found.stack_id[rows], found.free_event[rows]
    is_first = stack != np.append(-1, stack[:-1])
    starts = np.append(found.alloc_event[rows][is_first], np.iinfo("i8").max)
    mine: NDArray[Any] = ~is_first & (free >= 0) & (free < starts[np.cumsum(is_first)])
    return mine


def _following(sizes: list[int], kinds: list[int], scratch: list[bool]) -> list[tuple[int, int]]:
    """Return kind and size of the operation that takes each row: the next large one."""
    found, then, size_then = [], int(CastKind.OTHER), 0
    for size, kind, own in zip(reversed(sizes), reversed(kinds), reversed(scratch), strict=True):
        found.append((then, size_then))
        if _SMALL * size >= size_then and not own:
            then, size_then = kind, size
    return found[::-1]


def _freed_size(found: Allocations, n_events: int) -> list[int]:
    size = np.zeros(n_events, dtype="i8")
    is_freed = found.free_event >= 0
    size[found.free_event[is_freed]] = found.block_size[is_freed]
    sizes: list[int] = size.tolist()
    return sizes


def _next_alloc(action: NDArray[Any], event: int) -> int:
    """Return the event of the next allocation, up to 8 events on: inputs are freed right after their use."""
    end = min(event + 8, len(action))
    following = np.flatnonzero(action[event + 1 : end] == Action.ALLOC)
    return event + 1 + int(following[0]) if len(following) else end


def _follow_backward(
    lives: Lives, owners: Owners, assigned: Assigned, factor: NDArray[Any], is_size: NDArray[Any]
) -> None:
    """Give gradients of 16-bit tensors 16 bits; gradients of parameters stay at 32.

    *is_size* marks allocations as large as one of forward; others are scratch memory of sums, always of 32.
    """
    follows = (lives.phase == Phase.BACKWARD) & (owners.forward >= 0)
    follows &= (assigned.category == Category.TEMPORARY) & is_size
    factor[follows] = np.minimum(factor[owners.forward[follows]], 1.0)


# ------------------------------------------------------------------------------ additional copies


def _weights(
    found: Allocations, owners: Owners, assigned: Assigned, low: NDArray[Any]
) -> list[tuple[int, int]]:
    """Return the parameters of modules that multiply: the called module and the bytes."""
    is_parameter = (assigned.category == Category.PARAMETER) & (owners.known == ModuleEvidence.NAME)
    called = {owners.paths[module]: module for module in set(owners.module[low].tolist()) if module}
    rows = np.flatnonzero(is_parameter)
    pairs = zip(owners.module[rows].tolist(), found.block_size[rows].tolist(), strict=True)
    users = [(_user(owners.paths[module], called), size) for module, size in pairs]
    own = [(user, size) for user, size in users if user is not None]
    # A last layer that shares the embedding's weight has no parameter of its own name.
    without = set(called.values()).difference(user for user, _ in own)
    shared = max((size for user, size in users if user is None), default=0)
    return [*own, (max(without), shared)] if without else own


def _user(path: str, called: dict[str, int]) -> int | None:
    """Return the module itself, or the one around it that multiplies with its weights, like attention."""
    return called.get(path, called.get(path.rpartition(".")[0]))


def _is_on(found: Allocations, owners: Owners, low: NDArray[Any], weights: list[tuple[int, int]]) -> bool:
    """Return whether most modules that multiply allocate half of their weight: autocast's copy."""
    most = max((size for _, size in weights), default=0)
    large = [(module, size) for module, size in weights if size >= min(_A_WEIGHT, most)]
    made = set(zip(owners.module[low].tolist(), found.block_size[low].tolist(), strict=True))
    seen = sum((module, -(-size // (2 * GRANULE)) * GRANULE) in made for module, size in large)
    return 2 * seen > len(large)


_Copies = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""First instant, end (exclusive) and bytes of each copy."""


def _weight_copies(
    found: Allocations, lives: Lives, owners: Owners, weights: list[tuple[int, int]], low: NDArray[Any]
) -> _Copies:
    """Return 16-bit copies of weights: from a module's first run until backward frees what it saved."""
    n_bytes: dict[int, float] = {}
    for module, size in weights:
        n_bytes[module] = n_bytes.get(module, 0) + size * HALF
    copies: list[tuple[int, int, float]] = []
    order = np.argsort(lives.born_in, kind="stable")
    phases, ends = _to_backward(lives, np.unique(lives.born_in[low]))
    cuts = np.searchsorted(lives.born_in[order], [phases, phases + 1])
    for phase, end, start, stop in zip(phases, ends, *cuts, strict=True):
        within = order[start:stop]
        modules = owners.module[within]
        _, first = np.unique(modules, return_index=True)
        for at in first[np.isin(modules[first], list(n_bytes))].tolist():
            saved = found.free_event[within[max(at - 1, 0)]], found.free_event[within[modules == modules[at]]]
            gone = np.append(*saved[::-1])
            last = gone[gone < end].max(initial=lives.phases.end_event[phase])
            copies.append((int(found.alloc_event[within[at]]), int(last), n_bytes[int(modules[at])]))
    table = np.array(copies).reshape(-1, 3)
    return table[:, 0].astype("i8"), table[:, 1].astype("i8"), table[:, 2]


def _to_backward(lives: Lives, phases: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the forwards among *phases* that a backward follows, and the end of that backward."""
    forwards = phases[lives.phases.phase[phases] == Phase.FORWARD]
    ends = np.sort(lives.phases.end_event[lives.phases.phase == Phase.BACKWARD])
    at = np.searchsorted(ends, lives.phases.start_event[forwards])
    return forwards[at < len(ends)], ends[at[at < len(ends)]]


def _input_copies(
    found: Allocations, lives: Lives, assigned: Assigned, forward: tuple[NDArray[Any], NDArray[Any]]
) -> _Copies:
    """Return the 16-bit copy of a batch that goes into a product first, which keeps it for backward."""
    rows, kind = forward
    phases, first = np.unique(lives.born_in[rows], return_index=True)
    forwards, dies = _to_backward(lives, phases[kind[first] == CastKind.LOW])
    born = lives.phases.start_event[forwards]
    inputs = np.flatnonzero(assigned.category == Category.INPUT)
    n_bytes = [_sum_at(found, inputs, start) * HALF for start in born.tolist()]
    return born, dies, np.array(n_bytes)


def _sum_at(found: Allocations, rows: NDArray[Any], instant: int) -> int:
    return int(found.block_size[rows][found.rows(rows).allocated_at(instant)].sum())


def _casts(found: Allocations, forward: tuple[NDArray[Any], NDArray[Any]]) -> _Copies:
    """Return the 32-bit copies that a softmax or loss makes of a 16-bit input while it runs."""
    rows, kind = forward
    size = found.block_size[rows]
    of_low = (kind[1:] == CastKind.WIDE) & (kind[:-1] == CastKind.LOW) & (size[1:] == size[:-1])
    mine = rows[1:][of_low | (kind[1:] == CastKind.SOFTMAX)]
    born = found.alloc_event[mine] + 1
    return born, born + 1, found.block_size[mine].astype(float)


def _originals(found: Allocations, owners: Owners, rows: NDArray[Any], cast: NDArray[Any]) -> _Copies:
    """Return the 32-bit originals that live beside a 16-bit copy while the module that takes them runs."""
    paths = [owners.paths[module].split(".") for module in owners.module[rows].tolist()]
    ends = [_returns(paths, row) for row in cast.tolist()]
    born = found.alloc_event[rows][cast] + 1
    dies = np.append(found.alloc_event[rows], found.alloc_event[rows][-1:])[ends]
    return born, dies + 1, found.block_size[rows][cast].astype(float)


def _returns(paths: list[list[str]], row: int) -> int:
    """Return the first row after the module that takes the result of *row*."""
    if row + 1 == len(paths):
        return row + 1
    mine, taker = paths[row], paths[row + 1]
    n_shared = next((at for at, (a, b) in enumerate(zip(mine, taker, strict=False)) if a != b), len(mine))
    inside = taker[: n_shared + 1 + (taker[n_shared + 1 : n_shared + 2] or ["-"])[0].isdigit()]
    following = range(row + 1, len(paths))
    return next((at for at in following if paths[at][: len(inside)] != inside), len(paths))


def _of_losses(
    found: Allocations,
    lives: Lives,
    assigned: Assigned,
    forward: tuple[NDArray[Any], NDArray[Any]],
    factor: NDArray[Any],
) -> _Copies:
    """Return the 32-bit gradients of 16-bit results that a loss took as 32, until the loss's own is freed.

    From then on they have 16 bits. They are recognized by the size of the result. Changes *factor*.
    """
    rows, kind = forward
    size_low, size_wide = (found.block_size[rows[kind == each]] for each in (CastKind.LOW, CastKind.WIDE))
    of_backward = (lives.phase == Phase.BACKWARD) & (assigned.category == Category.TEMPORARY)
    of_backward &= np.isin(found.block_size, np.intersect1d(size_low, size_wide))
    mine = np.flatnonzero(of_backward)
    factor[mine] = HALF
    ends = np.sort(found.free_event[rows[kind == CastKind.WIDE]])
    at = np.searchsorted(ends, found.alloc_event[mine])
    mine, at = mine[at < len(ends)], at[at < len(ends)]
    dies = np.minimum(ends[at], found.free_event[mine])
    lasts = dies > found.alloc_event[mine]
    born = found.alloc_event[mine][lasts] + 1
    return born, dies[lasts] + 1, found.block_size[mine][lasts] * HALF
