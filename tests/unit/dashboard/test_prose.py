"""Code in sentences: between backticks, and never more than text."""

from dash import html
from vramscope.dashboard.components.prose import prose


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
