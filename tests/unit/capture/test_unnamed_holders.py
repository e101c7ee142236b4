"""What no variable names: what a ``for`` statement holds, what a cycle holds, and how long a list may get."""

import gc
import sys
import textwrap

import pytest
import torch

from vramscope.capture.holders import search
from vramscope.capture.holders.bounds import bounded_at, bounds


class Stream:
    """Keeps what it yields."""

    def __init__(self, n):
        self.n, self.seen = n, []

    def __iter__(self):
        return self

    def __next__(self):
        if len(self.seen) == self.n:
            raise StopIteration
        self.seen.append(torch.zeros(77))
        return self.seen[-1]


def batches(n):
    replay = []
    for _ in range(n):
        replay.append(torch.zeros(77))
        yield replay[-1]


def ways_to(n):
    """The first steps of the ways to all tensors of *n* elements, but those of local variables."""
    found = search(20.0, sys._getframe(1))
    assert found.is_complete
    return {way.words[0][:2] for way in found.ways if way.storage.nbytes() == 4 * n} - {("local", "x")}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        pytest.param(lambda: Stream(3), "Stream", marks=pytest.mark.exhaustive),
        pytest.param(lambda: batches(3), "batches", marks=pytest.mark.exhaustive),
        (lambda: map(torch.neg, Stream(3)), "map"),
        pytest.param(lambda: (part for part in batches(3)), "<genexpr>", marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_for_statement_holds_is_no_cycle(make, name):
    kinds = set()
    for x in make():
        kinds |= ways_to(77)
        del x

    assert kinds, "it was found"
    assert {kind for kind, _ in kinds} == {"unnamed"}
    assert {held for _, held in kinds} == {name}


def test_a_cycle_is_unreachable_also_beside_a_for_statement():
    gc.collect()
    for _ in Stream(1):
        stream = Stream(1)
        stream.seen.append(torch.zeros(55))
        stream.me = stream
        del stream
        kinds = ways_to(55)
    gc.collect()

    assert kinds == {("unreachable", "Stream")}


@pytest.mark.parametrize(
    ("source", "n_items"),
    [
        ("if len(pool) < 50:\n    pool.append(x)", 50),
        ("SIZE = 60\npool.append(x)\nif len(pool) > SIZE:\n    pool.pop(0)", 60),
        ("pool.append(x)\nwhile 9 < len(pool):\n    del pool[0]", 9),
        ("def put(x):\n    if len(pool) >= 4:\n        return\n    pool.append(x)", 4),
        ("pool.append(x)\nif len(pool) >= n:\n    pool = []", 0),
        ("pool.append(x)\nif len(pool) > 1:\n    print(sum(pool))", None),
        ("while len(pool) < 40:\n    pool.append(x)", None),
        ("if len(pool) % 100 == 0:\n    print(pool)\npool.append(x)", None),
    ],
)
def test_a_comparison_of_its_length_bounds_a_list_only_where_it_ends_its_growth(tmp_path, source, n_items):
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    bound = bounds(str(file)).get(("pool", False))
    said = list(bounded_at((("global", "pool", str(file)), ("item", 0, "list"))))

    assert (None if bound is None else bound.n_items) == n_items
    assert [word[-1] for word in said] == ([] if n_items is None else [n_items])


def test_no_way_leads_through_all_modules_or_operators_of_torch(monkeypatch):
    monkeypatch.setattr(torch.ops, "marked", [torch.zeros(78)], raising=False)
    monkeypatch.setattr(torch.ops.aten, "marked", [torch.zeros(79)], raising=False)
    modules, ops, namespace = (
        sys.modules,
        torch.ops,
        torch.ops.aten,
    )  # as Triton and compiled programs name them

    kinds = {kind for kind, _ in ways_to(78) | ways_to(79)}

    assert (modules["torch"].ops, ops.aten) == (ops, namespace)
    assert kinds <= {"unreachable"}
