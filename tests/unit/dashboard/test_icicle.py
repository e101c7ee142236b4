"""The icicle: bounded, exact, and deaf to markup."""

import json

import numpy as np
from vramscope.dashboard.figures import icicle

from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.tree import Tree, tree_of
from vramscope.model.stacks import StackBuilder


def forest(n: int, depth: int = 8) -> Tree:
    rng = np.random.default_rng(0)
    builder = StackBuilder()
    ids = [
        builder.add([(f"f{rng.integers(5)}", f"/a/m{d}.py", int(rng.integers(60))) for d in range(depth)])
        for _ in range(n)
    ]
    stack_id = np.unique(ids)
    n_bytes = rng.integers(512, 1 << 24, len(stack_id))
    return tree_of(builder.build(), StackBytes.of(stack_id=stack_id, bytes=n_bytes, count=n_bytes > 0))


def test_a_tree_of_thousands_is_drawn_with_at_most_250_boxes_in_40_kb() -> None:
    figure = icicle.figure(forest(5000))

    assert len(figure["data"][0]["ids"]) <= 250
    assert len(json.dumps(figure)) <= 40_000


def test_what_is_left_out_is_shown_as_other() -> None:
    assert any("other" in name for name in icicle.figure(forest(5000))["data"][0]["hovertext"])


def test_a_click_on_other_leads_to_its_caller() -> None:
    whole = forest(5000)
    drawn = icicle.figure(whole)["data"][0]
    row = next(i for i, name in enumerate(drawn["hovertext"]) if "other" in name)

    assert drawn["customdata"][row] == drawn["customdata"][int(drawn["parents"][row])]


def test_a_box_leads_to_a_picture_that_starts_with_it() -> None:
    whole = forest(300)
    child = icicle.figure(whole)["data"][0]["customdata"][1]

    assert icicle.figure(whole, child)["data"][0]["customdata"][0] == child


def test_markup_in_names_is_text() -> None:
    names = ("<script>alert(1)</script>", "<b>b</b>", '<a href="https://evil.example">x</a>', "A" * 10_240)
    builder = StackBuilder()
    ids = [builder.add([(name, f"/x/{name}.py", 1)]) for name in names]
    live = StackBytes.of(stack_id=ids, bytes=[1 << 20] * 4, count=[1] * 4)
    drawn = icicle.figure(tree_of(builder.build(), live))["data"][0]
    text = "".join(drawn["labels"]) + "".join(drawn["hovertext"]).replace("<br>", "")

    assert "<" not in text
    assert len(text) < 3000
