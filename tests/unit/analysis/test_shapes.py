"""Shapes that labels name, and the largest tensors of a step that fill a block of their own."""

import pytest

from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.shapes import TensorShape, largest_shapes, shapes_of
from vramscope.model.marks import Category, Labels
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

INPUT, OUTPUT, PARAMETER = Category.INPUT, Category.ACTIVATION, Category.PARAMETER


def labels(*rows: tuple[int, int, Category, int, str]) -> Labels:
    """Rows of event, address, category, bytes of a number, and name."""
    events, addresses, categories, numbers, names = zip(*rows, strict=True)
    return Labels.of(event=events, address=addresses, category=categories, element_bytes=numbers,
                     name=range(len(rows)), names=names)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "number", "sides"),
    [
        ("8 × 512", 8, (8, 512)),
        ("output of a module, 8 × 512 × 1000", 4, (8, 512, 1000)),
        ("output of a module", 4, None),
        ("layers.0.weight", 4, None),
        ("0 × 512", 4, None),
        ("8 × 512", 0, None),
    ],
)
def test_a_shape_is_read_from_the_name_of_a_label(
    name: str, number: int, sides: tuple[int, ...] | None
) -> None:
    (shape,) = shapes_of(labels((1, 64, INPUT, number, name)))

    assert shape == (None if sides is None else TensorShape(sides, number))


def test_the_bytes_of_a_tensor_are_said_as_the_product_of_its_sides() -> None:
    shape = TensorShape((8, 512, 8192), 4)

    assert shape.n_bytes == 134_217_728
    assert shape.words == "128 MiB = 8 × 512 × 8,192 × 4 B"


def test_the_largest_tensors_of_a_step_fill_a_block() -> None:
    sizes = {64: 8 * 64 * 8, 1024: 8 * 64 * 100 * 4, 4096: 512}
    trace = Trace.of(action=[Action.ALLOC] * 3, address=[*sizes], size=[*sizes.values()],
                     block_size=[*sizes.values()])  # fmt: skip
    seen = labels(
        (1, 64, INPUT, 8, "8 × 64"),
        (2, 1024, OUTPUT, 4, "output of a module, 8 × 64 × 100"),
        (3, 4096, OUTPUT, 4, "output of a module, 8 × 64 × 900"),  # a view, larger than its block
        (3, 4096, PARAMETER, 4, "weight"),
    )
    found = lifetimes(Recording(trace=trace))

    assert largest_shapes(seen, found, (0, 3)) == {
        INPUT: TensorShape((8, 64), 8), OUTPUT: TensorShape((8, 64, 100), 4),
    }  # fmt: skip
    assert largest_shapes(seen, found, (1, 3)) == {OUTPUT: TensorShape((8, 64, 100), 4)}
