"""Reductions: a buffer between blocks of threads where the input is long, and a cast where types differ."""

from collections.abc import Callable
from typing import Any

import torch

from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators._reduce import Dim, Kernel, buffers, n_bytes

_CHUNK = 65_536


def _dims_of(call: Call, n_dims: int) -> set[int]:
    given = call.given("dim")
    if given is None or given == []:
        return set(range(n_dims))
    return {one % max(n_dims, 1) for one in (given if isinstance(given, list | tuple) else [given])}


def reduced(source: Any, out: Any, dims: set[int]) -> list[Dim]:
    """The dimensions of a reduction of *source* to *out*."""
    strides = list(out.stride())
    kept = [i for i in range(source.dim()) if i not in dims]
    # Without keepdim the output has fewer dimensions; with it as many.
    of = dict(zip(kept, strides, strict=True)) if len(strides) == len(kept) else dict(enumerate(strides))
    return [
        Dim(size, 0 if i in dims or size == 1 else of.get(i, 0), source.stride(i))
        for i, size in enumerate(source.shape)
    ]


def _accumulates(dtype: torch.dtype) -> int:
    return 4 if dtype in (torch.float16, torch.bfloat16, torch.float32) else max(8, dtype.itemsize)


def _buffers(call: Call, source: Any, kernel: Kernel) -> tuple[int, ...]:
    out = call.out[0] if isinstance(call.out, list | tuple) else call.out
    if source.numel() == 0 or source.dim() == 0:
        return ()
    dims = reduced(source, out, _dims_of(call, source.dim()))
    return buffers(dims, source.storage_offset(), kernel, call.so_far.card)


def sum_buffers(source: Any, out: Any, dims: set[int], card: Hardware) -> tuple[int, ...]:
    """The buffers of a sum of *source* over *dims* to *out*, of its type, in their order."""
    if not source.numel():
        return ()
    half = source.dtype in (torch.float16, torch.bfloat16)
    kernel = Kernel(source.element_size(), _accumulates(source.dtype), 4, 8 if half else 4)
    return buffers(reduced(source, out, dims), source.storage_offset(), kernel, card)


def _sum(call: Call) -> OwnMemory:
    """Half precision is read as it is, and its result may be wider; any other type is cast first."""
    source, out = call.args[0], call.out
    is_half = source.dtype in (torch.float16, torch.bfloat16)
    cast: tuple[int, ...] = ()
    element = source.dtype.itemsize
    if source.dtype != out.dtype and not (is_half and out.dtype == torch.float32):
        cast, element = (source.numel() * out.element_size(),), out.element_size()
    vector = 8 if is_half and not cast else 4
    kernel = Kernel(element, _accumulates(out.dtype if cast else source.dtype), 4, vector)
    return OwnMemory(after=(*cast, *_buffers(call, source, kernel)))


def _through(accumulated: Callable[[torch.dtype], int]) -> Callable[[Call], OwnMemory]:
    """What a reduction takes that carries so many bytes for a result."""

    def own_memory(call: Call) -> OwnMemory:
        source = call.args[0]
        return OwnMemory(
            after=_buffers(call, source, Kernel(source.element_size(), accumulated(source.dtype)))
        )

    return own_memory


_mean, _truth = _through(_accumulates), _through(lambda _: 1)
_extreme = _through(lambda dtype: dtype.itemsize)
_place = _through(lambda _: 16)  # a value and its place, 8 bytes each after alignment


def _spread(call: Call) -> OwnMemory:
    """Welford's mean, sum of squares and count."""
    source = call.args[0]
    wide = source.dtype == torch.float64
    return OwnMemory(after=_buffers(call, source, Kernel(source.element_size(), 32 if wide else 16, 2, 2)))


def _norms(call: Call) -> OwnMemory:
    """A partial result for each chunk, as many for every tensor of the list as the largest has."""
    tensors = call.args[0]
    chunks = max((-(-one.numel() // _CHUNK) for one in tensors), default=0)
    size = 8 if any(one.dtype == torch.float64 for one in tensors) else 4
    return OwnMemory(before=(size * len(tensors) * chunks,)) if chunks else OwnMemory()


def _choice(call: Call) -> OwnMemory:
    """Checks of the probabilities, of which only those of rows may be seen; then a random number for each.

    Several with replacement are found by sums, of which there are three as large as the input.
    """
    source, count = call.args[0], call.args[1]
    n_bytes = source.numel() * source.element_size()
    if count > 1 and call.given("replacement", False):
        return OwnMemory(after=(n_bytes,) * 3)
    n_rows = source.numel() // source.size(-1)
    rows = n_rows * source.element_size()
    checked = [("taken", source.element_size())] * 2 + [("taken", 1)]
    sums = [("taken", rows), *([("taken", n_rows)] if source.dim() == 2 else []), ("taken", 1)]
    numbers = [("taken", n_bytes), *([("taken", rows * count)] if count > 1 else [])]
    given = [("given", size) for kind, size in sums]
    return OwnMemory(plan=(("made", 0), *checked, *sums, *given, ("taken", 1), *numbers))


def _histogram(call: Call) -> OwnMemory:
    """Without bounds the least and the greatest value are searched, for which there is a number each."""
    if call.given("min", 0) != call.given("max", 0):
        return OwnMemory()
    source = call.args[0]
    return OwnMemory(doubt=(Certainty.ESTIMATE, "its bounds are searched first"), perhaps=2 * n_bytes(source))


def _extreme_or_place(call: Call) -> OwnMemory:
    return _place(call) if isinstance(call.out, tuple) else _extreme(call)
