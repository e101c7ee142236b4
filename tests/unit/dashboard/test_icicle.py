"""The icicle: bounded, exact, and deaf to markup."""

import json

import numpy as np
from vramscope.dashboard.components.panels import call_tree
from vramscope.dashboard.figures import icicle

from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.compare.call_trees import overlaid
from vramscope.analysis.tree import Tree, tree_of
from vramscope.model.stacks import StackBuilder
from vramscope.units import format_bytes


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
    drawn = icicle.icicle(forest(5000))

    assert len(drawn.boxes) <= 250
    assert len(call_tree.as_data(drawn)) <= 40_000
    assert len(json.dumps(icicle.figure(drawn))) <= 40_000


def test_the_data_of_a_page_are_the_boxes_again() -> None:
    drawn = icicle.icicle(forest(300))

    sent = json.loads(call_tree.as_data(drawn))

    assert [
        icicle.CallBox(box[0], box[1], tuple(box[2]), tuple(box[3]), *box[4:]) for box in sent["boxes"]
    ] == [*drawn.boxes]
    assert (sent["n_callers"], sent["n_levels"], sent["n_rows"]) == drawn[1:]


def test_what_is_left_out_is_shown_as_other() -> None:
    assert any("other" in box.names[0] for box in icicle.icicle(forest(5000)).boxes)


def test_a_click_on_other_leads_to_its_caller() -> None:
    boxes = icicle.icicle(forest(5000)).boxes
    other = next(box for box in boxes if "other" in box.names[0])

    assert other.target == boxes[other.parent].target


def test_a_box_leads_to_a_picture_of_it_below_its_callers() -> None:
    whole = forest(300)
    child = int(np.flatnonzero(whole.parent == 1)[0])  # three calls deep: everything, its caller, itself
    drawn = icicle.icicle(whole, child)
    first = drawn.boxes[:3]

    assert (drawn.n_callers, drawn.root) == (2, child)
    assert [box.target for box in first] == [0, 1, child]
    assert [box.parent for box in first] == [-1, 0, 1]
    assert first[0].names == ("all live memory",)
    assert [box.sizes[1] for box in first] == [
        format_bytes(int(whole.total_bytes[row])) for row in (0, 1, child)
    ]
    assert first[0].width == first[1].width == first[2].width > 0


def test_the_boxes_of_a_call_are_as_wide_as_what_it_calls_and_what_it_allocates() -> None:
    whole = forest(300)
    boxes = icicle.icicle(whole).boxes
    called = np.zeros(len(boxes), "i8")
    for box in boxes[1:]:
        called[box.parent] += box.width

    # Only the innermost calls of this forest allocate; each call has a box, or is in one named "other".
    assert boxes[0].width == int(whole.total_bytes[0])
    assert all(n in (0, box.width) for n, box in zip(called.tolist(), boxes, strict=True))


def test_the_callers_of_a_deep_call_leave_room_for_what_it_calls() -> None:
    builder = StackBuilder()
    deep = builder.add([(f"f{i}", "/a/m.py", i + 1) for i in range(60)])
    live = StackBytes.of(stack_id=[deep], bytes=[1 << 20], count=[1])
    whole = tree_of(builder.build(), live)
    drawn = icicle.icicle(whole, 50)

    assert drawn.boxes[0].target == 0
    assert drawn.root == 50
    assert drawn.n_callers + icicle.LEAST_LEVELS <= drawn.n_levels == drawn.n_rows == icicle.MAX_ROWS


def test_markup_in_names_is_text() -> None:
    names = ("<script>alert(1)</script>", "<b>b</b>", '<a href="https://evil.example">x</a>', "A" * 10_240)
    builder = StackBuilder()
    ids = [builder.add([(name, f"/x/{name}.py", 1)]) for name in names]
    live = StackBytes.of(stack_id=ids, bytes=[1 << 20] * 4, count=[1] * 4)
    boxes = icicle.icicle(tree_of(builder.build(), live))
    drawn = icicle.figure(boxes)["data"][0]
    text = "".join(drawn["labels"]) + "".join(drawn["hovertext"]).replace("<br>", "")

    assert "<" not in text
    assert len(text) < 3000
    assert max(len(name) for box in boxes.boxes for name in box.names) < 300


def test_a_difference_has_the_change_of_every_call_in_words_and_in_color() -> None:
    def tree(**n_bytes: int) -> Tree:
        builder = StackBuilder()
        ids = [builder.add([(name, "/a/m.py", 1)]) for name in n_bytes]
        live = StackBytes.of(stack_id=ids, bytes=list(n_bytes.values()), count=[1] * len(ids))
        return tree_of(builder.build(), live)

    sizes = (
        {"gone": 4 << 20, "same": 8 << 20, "half": 8 << 20},
        {"new": 2 << 20, "same": 8 << 20, "half": 4 << 20},
    )
    found = overlaid(tree(**sizes[0]), tree(**sizes[1]), (str, str))
    boxes = icicle.difference(found).boxes
    words = {box.names[0].split()[0]: (box.sizes[0], box.color) for box in boxes}

    assert words["gone"] == ("−4.00 MiB", icicle.LESS)
    assert words["same"] == ("as much", icicle.SAME)
    assert words["new"] == ("+2.00 MiB", icicle.MORE)
    assert words["half"][0] == "−4.00 MiB"
    assert words["half"][1] not in (icicle.LESS, icicle.SAME)
    assert words["all"][0] == "−6.00 MiB"
    assert "20.0 MiB before, 14.0 MiB after" in boxes[0].detail
