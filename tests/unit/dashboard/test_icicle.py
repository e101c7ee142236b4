"""The icicle: bounded, exact, and deaf to markup."""

import json
from base64 import b64decode

import numpy as np
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


def test_a_box_leads_to_a_picture_of_it_below_its_callers() -> None:
    whole = forest(300)
    child = int(np.flatnonzero(whole.parent == 1)[0])  # three calls deep: everything, its caller, itself
    drawn = icicle.figure(whole, child)["data"][0]

    assert drawn["meta"] == 2
    assert drawn["customdata"][:3] == [0, 1, child]
    assert drawn["parents"][:3] == ["", "0", "1"]
    assert "all live memory" in drawn["hovertext"][0]
    n_bytes = [int(whole.total_bytes[row]) for row in (0, 1, child)]
    assert [format_bytes(n) in text for n, text in zip(n_bytes, drawn["hovertext"], strict=False)] == [
        True
    ] * 3
    widths = np.frombuffer(b64decode(drawn["values"]["bdata"]), drawn["values"]["dtype"])[:3]
    assert widths[0] == widths[1] == widths[2] > 0


def test_the_callers_of_a_deep_call_leave_room_for_what_it_calls() -> None:
    builder = StackBuilder()
    deep = builder.add([(f"f{i}", "/a/m.py", i + 1) for i in range(60)])
    live = StackBytes.of(stack_id=[deep], bytes=[1 << 20], count=[1])
    whole = tree_of(builder.build(), live)
    drawn = icicle.figure(whole, 50)["data"][0]

    assert drawn["customdata"][0] == 0
    assert drawn["customdata"][drawn["meta"]] == 50
    assert drawn["meta"] + icicle.LEAST_LEVELS <= drawn["maxdepth"] == icicle.MAX_ROWS


def test_markup_in_names_is_text() -> None:
    names = ("<script>alert(1)</script>", "<b>b</b>", '<a href="https://evil.example">x</a>', "A" * 10_240)
    builder = StackBuilder()
    ids = [builder.add([(name, f"/x/{name}.py", 1)]) for name in names]
    live = StackBytes.of(stack_id=ids, bytes=[1 << 20] * 4, count=[1] * 4)
    drawn = icicle.figure(tree_of(builder.build(), live))["data"][0]
    text = "".join(drawn["labels"]) + "".join(drawn["hovertext"]).replace("<br>", "")

    assert "<" not in text
    assert len(text) < 3000


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
    drawn = icicle.difference(found)["data"][0]
    shown = dict(
        zip(drawn["labels"], zip(drawn["text"], drawn["marker"]["colors"], strict=True), strict=True)
    )
    words = {label.strip("\u2068").split()[0]: value for label, value in shown.items()}

    assert words["gone"] == ("−4.00 MiB", icicle.LESS)
    assert words["same"] == ("as much", icicle.SAME)
    assert words["new"] == ("+2.00 MiB", icicle.MORE)
    assert words["half"][0] == "−4.00 MiB"
    assert words["half"][1] not in (icicle.LESS, icicle.SAME)
    assert words["all"][0] == "−6.00 MiB"
    assert "20.0 MiB before, 14.0 MiB after" in drawn["hovertext"][0]
