"""How much memory does a reduction share between blocks of threads?

A reduction whose input is long and whose output is short is cut over several blocks, which meet in a
buffer. The figures are those of ``aten/src/ATen/native/cuda/Reduce.cuh`` (``setReduceConfig``) on
dimensions ordered and joined as ``aten/src/ATen/TensorIterator.cpp`` does it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry.operators import Call, OwnMemory


def n_bytes(tensor: Any) -> int:
    """The bytes of all elements, each counted once for every place it has."""
    return int(tensor.numel() * tensor.element_size())


def copy_of(tensor: Any) -> tuple[int, ...]:
    """Bytes of the contiguous copy that a kernel makes of it; nothing where it lies in one piece."""
    return () if tensor is None or tensor.is_contiguous() else (n_bytes(tensor),)


def first_copied(call: Call) -> OwnMemory:
    """The contiguous copy that a kernel makes of its first argument."""
    return OwnMemory(after=copy_of(call.args[0]))


def taken(*sizes: int) -> tuple[tuple[str, int], ...]:
    """These sizes as a part of ``OwnMemory.plan``."""
    return tuple(("taken", size) for size in sizes)


def passing(size: int) -> tuple[tuple[str, int], ...]:
    """Taken and given back at once."""
    return (("taken", size), ("given", size))


_WARP = 32
_MOST_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256
_LARGEST_OFFSET = 2**31 - 1


class Dim(NamedTuple):
    """One dimension: its length, and its steps in elements."""

    size: int
    out: int
    """0 where it is reduced."""
    into: int


class Kernel(NamedTuple):
    """What a kernel was compiled with."""

    element_bytes: int
    """Bytes per element of the input as the kernel reads it."""
    sum_bytes: int
    """Bytes per element of what the kernel accumulates in."""
    values: int = 4
    """``vt0``: values a thread has under way."""
    vector: int = 4
    """``input_vec_size``"""


def buffers(dims: Sequence[Dim], offset: int, kernel: Kernel, card: Hardware) -> tuple[int, ...]:
    """Bytes of the buffer and of its semaphores; nothing where no block needs another.

    *offset* is the first element of the input in its storage.
    """
    joined = _joined(sorted_dims(dims))
    if 1 + sum((dim.size - 1) * dim.into for dim in joined) * kernel.element_bytes > _LARGEST_OFFSET:
        return max(buffers(half, offset, kernel, card) for half in _halves(joined))
    return _of(joined, offset, kernel, card)


def sorted_dims(dims: Sequence[Dim]) -> list[Dim]:
    """The fastest first, reduced ones before all others."""
    found = list(reversed(dims))
    for i in range(1, len(found)):
        at = i
        for before in range(i - 1, -1, -1):
            order = _order(found[before], found[at])
            if order > 0:
                found[before], found[at] = found[at], found[before]
                at = before
            elif order < 0:
                break
    return found


def _order(first: Dim, second: Dim) -> int:
    if (first.out == 0) != (second.out == 0):
        return 1 if second.out == 0 else -1
    for a, b in ((first.out, second.out), (first.into, second.into)):
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if first.size > second.size:
            return 1
    return 0


def _joined(dims: Sequence[Dim]) -> list[Dim]:
    """Neighbours that are one dimension in input and output alike."""
    found: list[Dim] = []
    for dim in dims:
        last = found[-1] if found else None
        if last is None:
            found.append(dim)
        elif (
            last.size == 1
            or dim.size == 1
            or (last.size * last.out, last.size * last.into) == (dim.out, dim.into)
        ):
            base = dim if last.size == 1 else last
            found[-1] = Dim(last.size * dim.size, base.out, base.into)
        else:
            found.append(dim)
    return found


def _halves(dims: Sequence[Dim]) -> list[list[Dim]]:
    place = max(range(len(dims)), key=lambda i: (dims[i].size - 1) * max(dims[i].into, dims[i].out))
    size = dims[place].size // 2
    return [
        [*dims[:place], dims[place]._replace(size=part), *dims[place + 1 :]]
        for part in (size, dims[place].size - size)
    ]


def _of(dims: Sequence[Dim], offset: int, kernel: Kernel, card: Hardware) -> tuple[int, ...]:
    reduced = [dim for dim in dims if dim.out == 0]
    kept = dims[len(reduced) :]
    n_inputs, n_outputs = _product(reduced), _product(kept)
    is_inner = not kept or (bool(reduced) and reduced[0].into < kept[0].into)
    width, height = (n_inputs, n_outputs) if is_inner else (n_outputs, n_inputs)
    fastest = reduced[0].into if is_inner else kept[0].into
    vector = 1
    if fastest == 1:
        if is_inner and width > 128 and len(reduced) == 1 and kernel.values >= kernel.vector:
            width //= kernel.vector
        elif not is_inner:
            vector = _output_vector(dims, len(reduced), offset)
            width //= vector
    block_x, block_y = _block(width, height, vector)
    step = block_x if is_inner else 1
    step_output = 1 if is_inner else block_x
    is_split = -(-n_inputs // step) >= min(block_y * 16, _MOST_VALUES)
    if is_split:
        step *= block_y
    else:
        step_output *= block_y
    values = -(-n_inputs // step)
    grid = -(-(n_outputs // vector) // step_output)
    target = card.n_multiprocessors * (card.threads_per_multiprocessor // (block_x * block_y))
    if not (is_split and values >= _MOST_VALUES and grid <= target):
        return ()
    blocks = max(min(-(-target // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))
    if blocks <= 1:
        return ()
    n_bytes = kernel.sum_bytes * n_outputs * blocks
    return (n_bytes if is_inner else n_bytes * block_x * vector, 4 * grid)


def _block(width: int, height: int, vector: int) -> tuple[int, int]:
    most = _MOST_THREADS // vector
    # The largest power of two that is not above it.
    x, y = (1 << max(one.bit_length() - 1, 0) if one < most else most for one in (width, height))
    block_x = min(x, _WARP)
    block_y = min(y, most // block_x)
    return min(x, most // block_y), block_y


def _output_vector(dims: Sequence[Dim], n_reduced: int, offset: int) -> int:
    vector = 4
    others = [dim.into for place, dim in enumerate(dims) if place != n_reduced]
    for number in (offset, dims[n_reduced].size, *others):
        while number % vector:
            vector //= 2
    return vector


def _product(dims: Sequence[Dim]) -> int:
    found = 1
    for dim in dims:
        found *= dim.size
    return found
