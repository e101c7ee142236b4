"""Parts that are sent as data: elements, attributes and texts, and never markup."""

import json
from pathlib import Path
from typing import Any

import pytest
from dash import dcc, html
from dash.development.base_component import Component
from vramscope.dashboard import create_app
from vramscope.dashboard.components.definitions import explained
from vramscope.dashboard.server.plain import thinned
from vramscope.dashboard.server.security import Access

HOSTILE = '<img src=x onerror="window.pwned=1">'


def content(part: Any) -> Any:
    return json.loads(getattr(thinned(part), "data-plain"))


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
    assert (thinned(shown).className, thinned(shown).children) == ("pair", None)


def test_styles_and_flags_are_those_that_dash_would_set() -> None:
    (node,) = content(html.Div(html.Span(style={"flexGrow": "12", "width": "3%"}, hidden=True)))
    assert node == ["span", {"style": "flex-grow: 12; width: 3%", "hidden": ""}, []]

    (node,) = content(html.Div(html.Span(hidden=False)))
    assert node == ["span", {}, []]


def test_a_name_of_a_recording_stays_a_text() -> None:
    (node,) = content(html.Div(html.Bdi(HOSTILE, title=HOSTILE)))
    assert node == ["bdi", {"title": HOSTILE}, [HOSTILE]]


def names(part: Any) -> list[str]:
    """The components that Dash knows in *part*, in order."""
    inner = getattr(part, "children", None)
    listed = inner if isinstance(inner, list) else [inner]
    within = [name for each in listed if isinstance(each, Component) for name in names(each)]
    return [f"{part._type}{'#' + part.id if hasattr(part, 'id') else ''}", *within]


def test_what_no_callback_knows_becomes_data_and_what_one_knows_stays() -> None:
    bar = html.Div([html.H3("Peak"), html.Span(["of ", html.B("all")], id="beside")], className="bar")
    link = html.A([html.I(), "more"], href="/peak?run=a", className="way")
    page = [html.Section([bar, html.Div([link, html.P("text")], id="changes"), dcc.Store(id="at")]), "text"]

    section, text = thinned(page, frozenset({"changes"}))

    assert text == "text"
    assert names(section) == ["Section", "Div", "Div#changes", "A", "P", "Store#at"]
    head, changes, _ = section.children
    assert json.loads(getattr(head, "data-plain")) == [
        ["h3", {}, ["Peak"]],
        ["span", {"id": "beside"}, ["of ", ["b", {}, ["all"]]]],
    ]
    followed = changes.children[0]
    assert (followed.href, followed.className) == (link.href, "way")
    # What was given is as before: a page may keep it for the next visitor.
    assert names(page[0]) == [
        "Section",
        "Div",
        "H3",
        "Span#beside",
        "B",
        "Div#changes",
        "A",
        "I",
        "P",
        "Store#at",
    ]


@pytest.mark.parametrize(
    "inner",
    [
        html.Button("x", id={"crumb": 1}),
        dcc.Input(),
    ],
)
def test_what_is_more_than_an_element_stays_as_it_is(inner: Any) -> None:
    assert thinned(html.Div([html.B("x"), inner])).children[1] is inner


def test_every_id_that_a_callback_of_the_dashboard_names_is_known(tmp_path: Path) -> None:
    app = create_app(tmp_path, Access(token=""))
    sent = json.loads(app.server.test_client().get("/_dash-dependencies").data)

    named = {each["id"] for one in sent for each in (*one["inputs"], *one["state"])}
    for one in sent:
        named |= {name.rpartition(".")[0] for name in one["output"].strip(".").split("...")}
    # An id with a dictionary is known wherever it stands.
    assert {"page", "menu", "ov-opening"} < {name for name in named if name[0] != "{"} <= app.known_ids
