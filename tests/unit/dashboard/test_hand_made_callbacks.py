"""Requests that no page of ours would send: refused in one line each, never an error of the server."""

import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

BASE = "http://127.0.0.1"
REFUSED = {400, 404}
ANSWERED = {200, 204} | REFUSED
WRONG = (
    "word", "", 7, -1, 10**30, 1.5, True, [], ["a"], [None], [[1]], [{}], [{"id": []}], {}, {"key": {"a": 1}},
    {"points": "a"}, {"points": [1]}, {"points": [{"customdata": {}}]}, {"points": [{"customdata": 1e300}]},
    {"run": 5, "version": {}, "outcome": []}, {"row": "a", "node": [], "stack": "x", "answered": "y"},
    {"run": "r", "version": 1, "outcome": "no such outcome"}, {"run": "r", "version": 1},
)  # fmt: skip
"""What a client may send instead of the value that a page holds."""


@pytest.fixture
def client(data: Data) -> Any:
    return build_app(data, Access(None)).server.test_client()


def declared(client: Any) -> list[dict[str, Any]]:
    """The callbacks that this server answers itself, as it announces them to the browser."""
    announced = client.get("/_dash-dependencies", base_url=BASE).get_json()
    return [each for each in announced if each["clientside_function"] is None]


def request_of(callback: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The request of a page for *callback*, with *values* by ``id.property``; None for the others."""

    def side(slots: list[dict[str, Any]]) -> list[Any]:
        return [
            [] if "ALL" in slot["id"] else slot | {"value": values.get(f"{slot['id']}.{slot['property']}")}
            for slot in ({"id": slot["id"], "property": slot["property"]} for slot in slots)
        ]

    names = [name.rsplit(".", 1) for name in callback["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": prop} for name, prop in names]
    first = callback["inputs"][0]
    return {
        "output": callback["output"],
        "outputs": outputs if callback["output"].startswith("..") else outputs[0],
        "inputs": side(callback["inputs"]),
        "state": side(callback["state"]),
        "changedPropIds": [f"{first['id']}.{first['property']}"],
    }


def slots(callback: dict[str, Any]) -> list[str]:
    both = (*callback["inputs"], *callback["state"])
    return [f"{slot['id']}.{slot['property']}" for slot in both if "ALL" not in slot["id"]]


def send(client: Any, body: Any) -> Any:
    return client.post("/_dash-update-component", json=body, base_url=BASE)


def wrongly_typed(client: Any, run: str) -> Iterator[dict[str, Any]]:
    said = Address("/overview", run=run).stored
    for callback in declared(client):
        for slot, value in itertools.product(slots(callback), WRONG):
            yield request_of(callback, {"address.data": said, slot: value})


def test_a_value_of_a_wrong_type_is_refused_in_one_line(
    client: Any, data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    (run,) = data.runs.paths()
    n_refused = 0
    for body in wrongly_typed(client, run):
        caplog.clear()
        status = send(client, body).status_code

        assert status in ANSWERED, json.dumps(body)
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == (status in REFUSED), (status, lines)
        assert not any("\n" in line for line in lines)
        assert not any(record.exc_info for record in caplog.records)
        n_refused += status in REFUSED
    assert n_refused > 100


@pytest.mark.parametrize(
    "body",
    [None, 5, "word", [], {}, {"output": 5}, {"output": "no-such.data"}, {"output": ["a"]}, {"output": {}}],
)  # fmt: skip
def test_a_request_for_no_callback_of_ours_is_refused(client: Any, body: Any) -> None:
    assert send(client, body).status_code in REFUSED


def test_a_request_that_is_no_json_is_refused(client: Any) -> None:
    for text in (b"", b"{", b"\xff\xfe", b'{"output": NaN}', b"[" * 100_000):
        answer = client.post(
            "/_dash-update-component", data=text, base_url=BASE, content_type="application/json"
        )
        assert answer.status_code in REFUSED | {415}


@pytest.mark.parametrize("part", ["inputs", "state", "outputs", "changedPropIds"])
@pytest.mark.parametrize("wrong", [None, "word", 5, {}, [], [5], [None], [{}], [[]], [{"id": "x"}]])
def test_a_request_whose_parts_are_not_as_declared_is_refused(client: Any, part: str, wrong: Any) -> None:
    for callback in declared(client):
        body = request_of(callback, {}) | {part: wrong}

        assert send(client, body).status_code in ANSWERED
        shorter = {name: value for name, value in body.items() if name != part}
        assert send(client, shorter).status_code in ANSWERED


def test_names_out_of_a_request_never_break_the_log(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    send(client, {"output": "a\nb\x1b]0;owned\x07" + "x" * 100_000})
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.parametrize(
    "path",
    ["os/etc", "os/../x.js", "dash/no-such.js", "dash/../dash.py", "nothing/a.js", "vramscope/x.js",
     "plotly/package_data/nothing.js", "dash//etc/passwd", "%00/a", "dash/%00"],
)  # fmt: skip
def test_a_component_suite_that_is_not_served_is_not_found(client: Any, path: str) -> None:
    answer = client.get(f"/_dash-component-suites/{path}", base_url=BASE)

    # What is no path of a suite at all is a page of ours: the empty shell.
    assert answer.status_code in {308, *REFUSED} or "_dash-renderer" in answer.text


def test_a_page_that_holds_no_values_yet_is_answered(data: Data, client: Any) -> None:
    (run,) = data.runs.paths()
    for said in (None, Address("/overview", run=run).stored):
        for callback in declared(client):
            answer = send(client, request_of(callback, {"address.data": said}))

            assert answer.status_code in {200, 204}, (callback["output"], answer.text)


def test_what_pages_do_send_is_answered(data: Data, client: Any) -> None:
    (run,) = data.runs.paths()
    said = Address("/overview", run=run).stored
    version = {"run": run, "version": 0, "outcome": "finished"}
    values = {
        "address.data": said, "version.data": version, "key.data": {"key": "j", "n": 1}, "ov-at.data": 3,
        "ov-legend.value": ["allocated"], "ph-row.data": 1,
        "ph-graph-pick.data": {"row": 1, "picks": 1},
        "pk-table.selectedRows": [{"id": "1"}], "ov-table.selectedRows": [{"id": "1", "stack": 2}],
        "al-table.selectedRows": [{"id": "1"}], "pk-root.data": 1, "pk-at.data": 3, "ph-chosen.data": 3,
        "pk-icicle-pick.data": {"node": 1}, "selected.data": {"what": "l1", "at": 3},
        "location.pathname": "/overview", "location.search": f"?run={run}", "poll.n_intervals": 1,
        "tick.n_intervals": 1, "fi-size.data": 40, "wf-row.data": 0,
    }  # fmt: skip
    for callback in declared(client):
        answer = send(client, request_of(callback, values))

        assert answer.status_code in {200, 204}, (callback["output"], answer.text)


def test_the_run_is_still_answered_for_after_all_of_it(data: Data, client: Any) -> None:
    (run,) = data.runs.paths()
    for body in itertools.islice(wrongly_typed(client, run), 0, None, 7):
        send(client, body)

    assert client.get("/", base_url=BASE).status_code == 200
    assert data.view(Address(run=run)).run.name == "gpt"
