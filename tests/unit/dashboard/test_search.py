"""What is typed finds the allocations it describes, whatever is typed."""

from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.queries.allocation_search import (
    Query,
    matching,
    parse,
)

from vramscope.analysis.lifetimes import Allocations
from vramscope.model.stacks import StackBuilder


def test_words_and_conditions_are_distinguished() -> None:
    assert parse("Attention size>64MiB life<2ms alive before") == Query(
        ("attention",), (("size", ">", 64 << 20), ("life", "<", 2e6)), alive=True, before=True
    )
    assert parse(">1.5k") == Query((), (("size", ">", 1536),))
    assert not parse("   ")
    assert not parse(None)


@pytest.mark.parametrize("text", ["size>9parsec", "<script>", "life>", "size>>2", "a" * 5000, "\u202e"])
def test_what_is_no_condition_is_a_word(text: str) -> None:
    assert parse(text).words
    assert not parse(text).limits


@pytest.fixture
def world() -> Any:
    stacks = StackBuilder()
    inner = stacks.add([("matmul", "/torch/ops.py", 3), ("Attention.forward", "/home/model.py", 9)])
    other = stacks.add([("step", "/home/optim.py", 4)])
    found = Allocations.of(
        alloc_event=[-1, 0, 1], free_event=[5, 6, -1], block_size=[10, 100, 1000], stack_id=[0, inner, other],
        alloc_ns=[0, 50, 60], free_ns=[90, 80, 0],
    )  # fmt: skip
    return found, stacks.build()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("attention", [1]), ("MODEL.py", [1]), ("matmul attention", [1]), ("matmul optim", []),
        ("optim", [2]), ("size>50", [1, 2]), ("size<50", [0]), ("life<40ns", [1]), ("life>40ns", [0, 2]),
        ("alive", [2]), ("before", [0]), ("size>50 alive", [2]), ("nothing-like-it", []),
    ],
)  # fmt: skip
def test_every_condition_must_hold(world: Any, text: str, rows: list[int]) -> None:
    found, stacks = world

    assert np.flatnonzero(matching(parse(text), found, stacks)).tolist() == rows
