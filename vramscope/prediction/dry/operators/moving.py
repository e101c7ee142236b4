"""Operators that move, sort and sum along a dimension, whose kernels want their input in one piece."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import NOTHING, Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import copy_of, n_bytes, passing, taken
from vramscope.prediction.dry.operators.embedding import sort_bytes

_BINCOUNT = torch.ops.aten.bincount.default


def _scan(call: Call) -> OwnMemory:
    """A cast where types differ; along the only dimension cub scans, with memory of its own."""
    source, out = call.args[0], call.out
    cast = () if source.dtype == out.dtype else (n_bytes(out),)
    own = (1279 + source.numel() // 280,) if source.dim() == 1 else ()
    return OwnMemory(after=(*cast, *own))


def _sort(call: Call) -> OwnMemory:
    """Numbers along the dimension; the only dimension of a longer tensor is sorted as pairs."""
    source = call.args[0]
    count = source.size(call.given("dim", -1)) if source.dim() else 1
    if source.dim() == 1 and count > 1024:
        return OwnMemory(after=(8 * count, sort_bytes(count) - (8 - source.element_size()) * count))
    return OwnMemory(after=(8 * count,))


def _top(call: Call) -> OwnMemory:
    """A long row is searched by several blocks, which count digits."""
    source = call.args[0]
    long_rows = source.dim() and source.size(call.given("dim", -1)) >= 10_000
    doubt = (Certainty.ESTIMATE, "what several blocks to a row take is known about") if long_rows else None
    return OwnMemory(doubt=doubt, perhaps=n_bytes(source) if doubt else 0)


def _unfold(call: Call) -> OwnMemory:
    return OwnMemory(after=(8 * call.out.size(call.given("dim")),)) if call.out.dim() else OwnMemory()


def _columns(call: Call) -> OwnMemory:
    return OwnMemory(before=(n_bytes(call.args[0]),))


def _from_columns(call: Call) -> OwnMemory:
    """The result lies in a storage as large as the columns."""
    source = call.args[0]
    return OwnMemory(plan=(("made_as", (0, n_bytes(source))), *taken(*copy_of(source))))


def _scattered(call: Call) -> OwnMemory:
    """A count of the chosen places before each, by cub, beside the mask and the values in one piece."""
    source, mask, values = call.args[:3]
    n = source.numel()
    copies = (n,) if mask.shape != source.shape else copy_of(mask)
    return OwnMemory(after=(*copies, *copy_of(values), 8 * n, 1024 + 16 * -(-n // 896)))


def _repeated(call: Call) -> OwnMemory:
    repeats = call.args[0]
    n = repeats.numel()
    plan = (*taken(8 * n), *passing(1279 + n // 280), ("made", 0))
    if repeats.dtype != torch.int64:
        # 4 bytes a repeat and cub's scratch, in a block of which up to 1 MiB is not split off.
        doubt = Certainty.ESTIMATE, "what repeats of 32 bits take is known within a range"
        return OwnMemory(plan=plan, perhaps=4096 + 8 * n, doubt=doubt)
    return OwnMemory(plan=plan)


def _shares(call: Call) -> OwnMemory:
    """Samples of gamma distributions in the result, and the sums by which they are divided."""
    return OwnMemory(after=(n_bytes(call.out) // max(1, call.out.size(-1)),))


def _power(call: Call) -> OwnMemory:
    """A number to the power of a tensor goes to the device first, as a double."""
    return OwnMemory(after=(8,)) if isinstance(call.args[0], int | float) else OwnMemory()


def _gathered(call: Call) -> OwnMemory:
    """Sums and extremes meet in the output; a mean also counts and divides."""
    if call.given("reduce") in ("sum", "amax", "amin"):
        return NOTHING
    n_most = 2 * n_bytes(call.args[3]) + 3 * n_bytes(call.out)
    return OwnMemory(
        doubt=(Certainty.ESTIMATE, "what this reduction takes is known within a range"), perhaps=n_most
    )


def _counts(source: Any, weights: Any = None, minlength: int = 0) -> Any:
    if not minlength:
        raise DynamicOutputShapeException(_BINCOUNT)
    dtype = torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float32)
    return source.new_empty(minlength, dtype=dtype)


def _counted(call: Call) -> OwnMemory:
    doubt = Certainty.ESTIMATE, "no number is assumed to be minlength or more"
    return OwnMemory(doubt=doubt, perhaps=3 * n_bytes(call.args[0]))


def _rolled(call: Call) -> OwnMemory:
    """Each dimension but the last leaves a result between."""
    source = call.args[0]
    between = taken(*(n_bytes(source),) * (len(call.given("dims", ())) - 1))
    copies = copy_of(source)
    given = [("given", n) for n in copies if between]
    return OwnMemory(plan=(*taken(*copies), *between, *given, ("made", 0)))


# The most rows whose keys were seen to fit into 32 bits and to be sorted by one block.
_SMALL_PERMUTATION = 1000


def _permutation(call: Call) -> OwnMemory:
    """Random keys, sorted together with the places."""
    count = call.out.numel()
    if count > _SMALL_PERMUTATION:
        doubt = Certainty.ESTIMATE, "what cub takes to sort so many keys is known within a range"
        return OwnMemory(doubt=doubt, perhaps=8 * n_bytes(call.out))
    if not count:
        return NOTHING
    work = [("taken", n) for n in (8 * count, 4 * count, 4 * count, 1)]
    return OwnMemory(plan=(("made", 0), ("taken", 8), ("given", 8), *work))


def _normal(call: Call) -> OwnMemory:
    """Means in a tensor are added to the result, beside one of its size; deviations are checked first."""
    if not isinstance(call.given("std", 1.0), int | float):
        doubt = Certainty.ESTIMATE, "what a check of the deviations takes is known within a range"
        return OwnMemory(doubt=doubt, perhaps=3 * n_bytes(call.out))
    return OwnMemory(after=(n_bytes(call.out),)) if isinstance(call.args[0], torch.Tensor) else NOTHING


_aten = torch.ops.aten
SHAPES = {_BINCOUNT: _counts} | {
    drawn.default: lambda given, *_: torch.empty_like(given, memory_format=torch.contiguous_format)
    for drawn in (_aten.binomial, _aten._sample_dirichlet, _aten._standard_gamma_grad, _aten._dirichlet_grad)
}
