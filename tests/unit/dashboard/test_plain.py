"""Parts that are sent as data: elements, attributes and texts, and never markup."""

import json
from typing import Any

import pytest
from dash import dcc, html
from vramscope.dashboard.components.definitions import explained
from vramscope.dashboard.server.plain import plain

HOSTILE = '<img src=x onerror="window.pwned=1">'


def content(part: Any) -> Any:
    return json.loads(getattr(plain(part), "data-plain"))


def test_elements_keep_their_tags_attributes_and_texts() -> None:
    name = explained(html.Span([html.I(className="swatch"), "input"], tabIndex="0"), "What it means.")
    shown = html.Div([name, html.Td(3, colSpan=4, title="3 bytes")], className="pair")

    assert content(shown) == [
        [
            "span",
            {"tabindex": "0", "data-means": "What it means."},
            [["i", {"class": "swatch"}, []], "input"],
        ],
        ["td", {"colspan": "4", "title": "3 bytes"}, ["3"]],
    ]
    assert (shown.className, shown.children) == ("pair", None)


def test_styles_and_flags_are_those_that_dash_would_set() -> None:
    (node,) = content(html.Div(html.Span(style={"flexGrow": "12", "width": "3%"}, hidden=True)))
    assert node == ["span", {"style": "flex-grow:12;width:3%", "hidden": ""}, []]

    (node,) = content(html.Div(html.Span(hidden=False)))
    assert node == ["span", {}, []]


def test_a_name_of_a_recording_stays_a_text() -> None:
    (node,) = content(html.Div(html.Bdi(HOSTILE, title=HOSTILE)))
    assert node == ["bdi", {"title": HOSTILE}, [HOSTILE]]


def test_what_only_dash_can_make_is_refused() -> None:
    with pytest.raises(TypeError, match="dash_core_components"):
        plain(html.Div(dcc.Link("elsewhere", href="/")))
