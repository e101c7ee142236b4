"""The shapes of tensors that the recorder saw by identity: what goes into a model, and what it returns."""

import re
from math import prod
from typing import NamedTuple

from vramscope.analysis.lifetimes import Allocations
from vramscope.model.marks import Category, Labels
from vramscope.units import format_bytes

_SHAPE = re.compile(r"(?:output of a module, )?([1-9]\d*(?: × [1-9]\d*)*)")


class TensorShape(NamedTuple):
    """The sides of a tensor, and the bytes of one of its numbers."""

    sides: tuple[int, ...]
    number_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes of all its numbers."""
        return prod(self.sides) * self.number_bytes

    @property
    def words(self) -> str:
        """The bytes as a product: ``128 MiB = 8 × 512 × 8,192 × 4 B``."""
        product = " × ".join(f"{side:,}" for side in self.sides)
        return f"{format_bytes(self.n_bytes)} = {product} × {self.number_bytes} B"


def shapes_of(labels: Labels) -> list[TensorShape | None]:
    """Return the shape of the tensor of each label; None where it is not known."""
    known = [_SHAPE.fullmatch(name) for name in labels.names]
    return [
        TensorShape(tuple(map(int, found[1].split(" × "))), n_bytes)
        if (found := known[name]) and n_bytes
        else None
        for name, n_bytes in zip(labels.name.tolist(), labels.element_bytes.tolist(), strict=True)
    ]


def largest_shapes(
    labels: Labels, found: Allocations, extent: tuple[int, int]
) -> dict[Category, TensorShape]:
    """Return the shapes of the largest input and output that were seen after one instant, until another.

    A shape is that of a block: a view, whose shape is not that of what it is a part of, does not count.
    """
    seen = labels.rows((labels.event > extent[0]) & (labels.event <= extent[1]))
    rows = [(shape, i) for i, shape in enumerate(shapes_of(seen)) if shape is not None]
    largest: dict[Category, TensorShape] = {}
    for shape, i in sorted(rows, key=lambda row: -row[0].n_bytes):
        category = Category(int(seen.category[i]))
        if category in largest:
            continue
        live = found.rows_at(int(seen.event[i]))
        if (found.size[live][found.address[live] == seen.address[i]] == shape.n_bytes).any():
            largest[category] = shape
    return largest
