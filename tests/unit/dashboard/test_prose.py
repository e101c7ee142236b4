"""Code in sentences: between backticks, and never more than text."""

from dash import html
from vramscope.dashboard.components.prose import claim_heading, prose
from vramscope.dashboard.figures.drawing.names import place

from vramscope.model.stacks import Frame


def test_what_stands_between_backticks_is_code() -> None:
    before, code, after = prose("leave out `retain_graph=True` here")

    assert (before, after) == ("leave out ", " here")
    assert isinstance(code, html.Code)
    assert code.children.children == "retain_graph=True"


def test_a_lonely_backtick_stays_as_it_is() -> None:
    assert prose("it`s") == ["it`s"]


def test_names_in_code_stay_text() -> None:
    (code,) = prose("`<script>1</script>`")

    assert code.children.children == "<script>1</script>"


def test_no_line_of_a_heading_ends_before_a_unit_or_begins_with_a_dot() -> None:
    heading = claim_heading("24.6 MiB at 1.5 ms · step 3, 30 % of 24 GB: it needs 7 blocks")

    shown = "24.6\u00a0MiB at 1.5\u00a0ms\u00a0· step 3, 30\u00a0% of 24\u00a0GB: it needs 7 blocks"
    assert heading.children == shown
    assert heading.className == "claim"


def test_parts_of_a_heading_that_are_no_text_stay_as_they_are() -> None:
    name = html.Bdi("run 5 s")
    heading = claim_heading(["1.00 KiB in ", name])

    assert heading.children == ["1.00\u00a0KiB in ", name]
    assert name.children == "run 5 s"


def test_a_line_cannot_end_between_the_dots_of_a_cut_name_and_the_name() -> None:
    shown = place(Frame("forward", f"/net/{'a' * 60}.py", 31))

    assert shown.startswith("…\u2060a")  # U+2060 is the word joiner
    assert shown.endswith("a.py:31")
