"""What if forward ran under autocast to 16 bits: which allocations halve, and which copies come on top?

Who asked for a tensor tells how autocast treats it: the innermost frame within torch. Products (linear
layers, convolutions, attention) give 16 bits; norms, softmax and losses stay at 32; what is in between
follows its input. The rules are those of ``torch.autocast("cuda", dtype=torch.bfloat16)``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.allocator.settings import GRANULE
from vramscope.analysis._life_rules import Lives
from vramscope.analysis._stack_rules import WORKSPACES
from vramscope.analysis.by_module import Known, Owners
from vramscope.analysis.categories import Assigned
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.model.marks import Category, Phase
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.trace import Action

HALF = 0.5
_FORWARD = (Phase.FORWARD, Phase.LOSS, Phase.RECOMPUTE)
_SMALL = 32
"""So many times smaller than the tensor before it: statistics, which say nothing of a type."""
_A_WEIGHT = 1 << 16
"""Bytes: only such weights are looked at to see whether copies are made already; the largest, if all are
smaller."""


class Kind(IntEnum):
    """How autocast treats what an operation makes."""

    OTHER = 0
    """The widest of its inputs."""
    LOW = 1
    """16 bits."""
    WIDE = 2
    """32 bits."""
    NORM = 3
    """32 bits, but of which the product after it keeps a copy of 16 instead."""
    SOFTMAX = 4
    """32 bits, and a copy of 16 for the product after it."""
    FOLLOWS = 5
    """As its input."""
    DROPOUT = 6
    """As its input, and a mask of a byte for each element."""


_BY_FILE = {
    "linear.py": Kind.LOW,
    "conv.py": Kind.LOW,
    "rnn.py": Kind.LOW,
    "sparse.py": Kind.WIDE,
    "normalization.py": Kind.NORM,
    "loss.py": Kind.WIDE,
    "batchnorm.py": Kind.FOLLOWS,
    "activation.py": Kind.FOLLOWS,
    "pooling.py": Kind.FOLLOWS,
    "dropout.py": Kind.DROPOUT,
}
"""Of torch/nn/modules."""
_BY_FUNCTION = {
    "_in_projection_packed": Kind.LOW,
    "_in_projection": Kind.LOW,
    "multi_head_attention_forward": Kind.LOW,
    "embedding": Kind.WIDE,
    "cross_entropy": Kind.WIDE,
    "nll_loss": Kind.WIDE,
    "mse_loss": Kind.WIDE,
    "log_softmax": Kind.WIDE,
    "layer_norm": Kind.NORM,
    "group_norm": Kind.NORM,
    "softmax": Kind.SOFTMAX,
    "dropout": Kind.DROPOUT,
} | dict.fromkeys(
    ("relu", "gelu", "silu", "leaky_relu", "elu", "batch_norm", "_max_pool2d", "interpolate"), Kind.FOLLOWS
)
"""Of torch/nn/functional.py."""


@dataclass(frozen=True, slots=True)
class Autocast:
    """What would be different."""

    factor: NDArray[Any]
    """Of each allocation."""
    born: NDArray[Any]
    """First instants of copies that come on top."""
    dies: NDArray[Any]
    """Where they are gone."""
    n_bytes: NDArray[Any]


def autocast(
    stacks: Stacks, found: Allocations, lives: Lives, owners: Owners, assigned: Assigned, action: NDArray[Any]
) -> Autocast | None:
    """None where nothing is known of the operations, or where copies of 16 bits are made already."""
    rows = np.flatnonzero(np.isin(lives.phase, _FORWARD) & (found.alloc_event >= 0))
    kinds = {each: _kind(stacks, each) for each in set(found.stack_id[rows].tolist())}
    kind = np.array([kinds[each] for each in found.stack_id[rows].tolist()], dtype="i8")
    is_low = kind == Kind.LOW
    weights = _weights(found, owners, assigned, rows[is_low])
    if not is_low.any() or _is_on(found, owners, rows[is_low], weights):
        return None
    factor = np.ones(len(found))
    factor[rows] = list(_factors(found, rows, kind, action))
    _follow_backward(lives, owners, assigned, factor)
    copies = [_weight_copies(lives, weights, rows[is_low])]
    copies.append(_input_copies(found, lives, assigned, (rows, kind)))
    copies.append(_casts(found, (rows, kind)))
    copies.append(_of_losses(found, lives, assigned, (rows, kind), factor))
    is_workspace = np.isin(found.size, WORKSPACES) & (assigned.category != Category.ACTIVATION)
    factor[is_workspace | (assigned.category == Category.WORKSPACE)] = 1.0
    return Autocast(factor, *(np.concatenate(column) for column in zip(*copies, strict=True)))


def _kind(stacks: Stacks, stack_id: int) -> Kind:
    frame = stacks.frame(stack_id) if stack_id else Frame("", "", 0)
    folder, _, name = frame.file.replace("\\", "/").rpartition("/")
    if folder.endswith("torch/nn/modules"):
        return _BY_FILE.get(name, Kind.OTHER)
    if folder.endswith("torch/nn") and name == "functional.py":
        return _BY_FUNCTION.get(frame.function, Kind.OTHER)
    return Kind.OTHER


# ------------------------------------------------------------------------------------ what halves


def _factors(
    found: Allocations, rows: NDArray[Any], kind: NDArray[Any], action: NDArray[Any]
) -> Iterator[float]:
    """In the order of the program: what is wide when something is made decides what that is."""
    wide_until: dict[int, int] = {}  # by size, when the last such tensor of 32 bits goes
    is_low, before, is_product = False, 0, False
    sizes, ends = found.block_size[rows].tolist(), found.free_event[rows].tolist()
    events = found.alloc_event[rows].tolist()
    freed = _freed_size(found, len(action))
    kinds = kind.tolist()
    following = _following(sizes, kinds)
    for size, end, event, what, then in zip(sizes, ends, events, kinds, following, strict=True):
        if _SMALL * size < before:
            yield 1.0
            continue
        if (what == Kind.DROPOUT and size * 4 == before) or (what == Kind.FOLLOWS and size == 2 * before):
            yield 1.0  # a mask, of a byte each; where the maximum was, of eight
            continue
        takes, is_softmax = False, what == Kind.SOFTMAX
        if what in (Kind.LOW, Kind.WIDE, Kind.NORM, Kind.SOFTMAX):
            is_low = what == Kind.LOW
        elif what == Kind.OTHER:
            takes = size in freed[event + 1 : _next_alloc(action, event)]
            # Of two inputs one is let go of at once, and one of 32 bits is still there: their sum.
            is_low = not (takes and wide_until.get(size, -1) > event)
            # A product that the program made itself, and what takes it: attention written out.
            is_softmax = is_low and takes and is_product and size == before
        is_product = what == Kind.OTHER and is_low and not takes
        before = size
        if not is_low:
            forever = len(action) if end == ALIVE else end
            wide_until[size] = max(wide_until.get(size, -1), forever)
        is_cast = what == Kind.NORM or (what == Kind.OTHER and then == Kind.LOW)
        yield 1.5 if is_softmax else HALF if is_low or is_cast else 1.0


def _following(sizes: list[int], kinds: list[int]) -> list[int]:
    """Of each row what takes it: the next large one."""
    found, then, size_then = [], int(Kind.OTHER), 0
    for size, kind in zip(reversed(sizes), reversed(kinds), strict=True):
        found.append(then)
        if _SMALL * size >= size_then:
            then, size_then = kind, size
    return found[::-1]


def _freed_size(found: Allocations, n_events: int) -> list[int]:
    size = np.zeros(n_events, dtype="i8")
    is_freed = found.free_event >= 0
    size[found.free_event[is_freed]] = found.block_size[is_freed]
    return size.tolist()


def _next_alloc(action: NDArray[Any], event: int) -> int:
    """Frees come right after what took the freed as its input."""
    end = min(event + 8, len(action))
    following = np.flatnonzero(action[event + 1 : end] == Action.ALLOC)
    return event + 1 + int(following[0]) if len(following) else end


def _follow_backward(lives: Lives, owners: Owners, assigned: Assigned, factor: NDArray[Any]) -> None:
    """A gradient of something of 16 bits has 16 bits; those of parameters stay at 32."""
    follows = (lives.phase == Phase.BACKWARD) & (owners.forward >= 0)
    follows &= assigned.category == Category.TEMPORARY
    factor[follows] = np.minimum(factor[owners.forward[follows]], 1.0)


# ------------------------------------------------------------------------------ what comes on top


def _weights(
    found: Allocations, owners: Owners, assigned: Assigned, low: NDArray[Any]
) -> list[tuple[int, int]]:
    """Parameters of modules that multiply: module and bytes."""
    is_parameter = (assigned.category == Category.PARAMETER) & (owners.known == Known.NAME)
    called = {owners.paths[module] for module in set(owners.module[low].tolist()) if module}
    is_used = {at: _within(path, called) for at, path in enumerate(owners.paths)}
    rows = np.flatnonzero(is_parameter)
    pairs = zip(owners.module[rows].tolist(), found.block_size[rows].tolist(), strict=True)
    return [(module, size) for module, size in pairs if is_used[module]]


def _within(path: str, called: set[str]) -> bool:
    """The module itself, or one around it that multiplies with its weights, as attention does."""
    return path in called or path.rpartition(".")[0] in called


def _is_on(found: Allocations, owners: Owners, low: NDArray[Any], weights: list[tuple[int, int]]) -> bool:
    """Whether most modules that multiply allocate half of their weight: the copy of autocast."""
    most = max((size for _, size in weights), default=0)
    large = [(module, size) for module, size in weights if size >= min(_A_WEIGHT, most)]
    made = set(zip(owners.module[low].tolist(), found.block_size[low].tolist(), strict=True))
    seen = sum((module, -(-size // (2 * GRANULE)) * GRANULE) in made for module, size in large)
    return 2 * seen > len(large)


_Copies = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""From an instant, up to an instant (exclusive), bytes."""


def _weight_copies(lives: Lives, weights: list[tuple[int, int]], low: NDArray[Any]) -> _Copies:
    """Weights in 16 bits: from the beginning of a forward to the end of the backward after it."""
    total = sum(size for _, size in weights) * HALF
    born, dies = _to_backward(lives, np.unique(lives.born_in[low]))
    return born, dies, np.full(len(born), total)


def _to_backward(lives: Lives, phases: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """From the start of each forward among *phases* to the end of the backward after it."""
    forwards = phases[lives.phases.phase[phases] == Phase.FORWARD]
    ends = np.sort(lives.phases.end_event[lives.phases.phase == Phase.BACKWARD])
    born = lives.phases.start_event[forwards]
    at = np.searchsorted(ends, born)
    return born[at < len(ends)], ends[at[at < len(ends)]]


def _input_copies(
    found: Allocations, lives: Lives, assigned: Assigned, forward: tuple[NDArray[Any], NDArray[Any]]
) -> _Copies:
    """Of a batch that goes into a product first, which keeps 16 bits of it for backward."""
    rows, kind = forward
    phases, first = np.unique(lives.born_in[rows], return_index=True)
    born, dies = _to_backward(lives, phases[kind[first] == Kind.LOW])
    inputs = np.flatnonzero(assigned.category == Category.INPUT)
    n_bytes = [_sum_at(found, inputs, start) * HALF for start in born.tolist()]
    return born, dies, np.array(n_bytes)


def _sum_at(found: Allocations, rows: NDArray[Any], instant: int) -> int:
    return int(found.block_size[rows][found.rows(rows).allocated_at(instant)].sum())


def _casts(found: Allocations, forward: tuple[NDArray[Any], NDArray[Any]]) -> _Copies:
    """A softmax or loss of a result of 16 bits takes a copy of 32, while it runs."""
    rows, kind = forward
    size = found.block_size[rows]
    of_low = (kind[1:] == Kind.WIDE) & (kind[:-1] == Kind.LOW) & (size[1:] == size[:-1])
    mine = rows[1:][of_low | (kind[1:] == Kind.SOFTMAX)]
    born = found.alloc_event[mine] + 1
    return born, born + 1, found.block_size[mine].astype(float)


def _of_losses(
    found: Allocations,
    lives: Lives,
    assigned: Assigned,
    forward: tuple[NDArray[Any], NDArray[Any]],
    factor: NDArray[Any],
) -> _Copies:
    """The gradient of a result of 16 bits that a loss took as 32: wide, until the loss's own goes; then low.

    They are known by their size, which is that of the result. Changes *factor*.
    """
    rows, kind = forward
    size_low, size_wide = (found.block_size[rows[kind == each]] for each in (Kind.LOW, Kind.WIDE))
    of_backward = (lives.phase == Phase.BACKWARD) & (assigned.category == Category.TEMPORARY)
    of_backward &= np.isin(found.block_size, np.intersect1d(size_low, size_wide))
    mine = np.flatnonzero(of_backward)
    factor[mine] = HALF
    ends = np.sort(found.free_event[rows[kind == Kind.WIDE]])
    at = np.searchsorted(ends, found.alloc_event[mine])
    mine, at = mine[at < len(ends)], at[at < len(ends)]
    dies = np.minimum(ends[at], found.free_event[mine])
    lasts = dies > found.alloc_event[mine]
    born = found.alloc_event[mine][lasts] + 1
    return born, dies[lasts] + 1, found.block_size[mine][lasts] * HALF
