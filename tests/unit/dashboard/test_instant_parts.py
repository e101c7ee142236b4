"""What the server answers for another instant of a page: the bytes that were live there, counted by hand."""

from typing import Any

import numpy as np
import pytest

from vramscope.model.trace import Action
from vramscope.units import format_bytes


@pytest.fixture
def ask(app: Any, view: Any) -> Any:
    client = app.server.test_client()
    client.get("/?token=secret-token", base_url="http://127.0.0.1")

    def asked(**query: Any) -> Any:
        named = {"page": "peak", "run": view.run_id} | query
        return client.get("/api/parts", query_string=named, base_url="http://127.0.0.1")

    return asked


def live_bytes(view: Any) -> Any:
    """The allocated bytes at every instant from the events: a request to free ends them, as in torch."""
    trace = view.recording.trace
    sign = np.where(trace.action == Action.ALLOC, 1, 0) - np.where(
        trace.action == Action.FREE_REQUESTED, 1, 0
    )
    return np.concatenate([[0], np.cumsum(sign * trace.size)])


def test_heading_and_table_have_the_bytes_of_the_instant(ask: Any, view: Any) -> None:
    counted = live_bytes(view)
    for at in np.unique([1, len(counted) // 2, len(counted) - 1, int(counted.argmax())]).tolist():
        said = ask(at=at).json
        heading = said["attributes"]["pk-opening"]["data-plain"].replace("\\u00a0", " ")

        assert said["at"] == at
        assert sum(row["bytes"] for row in said["props"]["pk-table"]["rowData"]) == counted[at]
        assert f"{format_bytes(int(counted[at]))} live at" in heading
        assert said["exact"][str(at)][2]["allocated"] == counted[at]


def test_without_an_instant_it_is_that_of_the_peak(ask: Any, view: Any) -> None:
    assert ask().json["at"] == int(live_bytes(view).argmax())


def test_what_the_page_shows_already_is_sent_again_only_where_it_may_have_changed(ask: Any) -> None:
    assert "attributes" not in ask(at=3, shown=3, final=3).json
    assert "attributes" in ask(at=3, shown=3, final=2).json
    assert "attributes" in ask(at=3, shown=4, final=4).json


def test_the_overview_shows_the_highest_level_in_view_until_an_instant_is_chosen(ask: Any, view: Any) -> None:
    counted = live_bytes(view)
    first, last = len(counted) // 2, len(counted) - 3
    highest = first + int(counted[first : last + 1].argmax())
    zoom = {"page": "overview", "axis": "events", "t0": first, "t1": last}

    assert ask(**zoom).json["at"] == highest
    assert ask(**zoom, at=3).json["at"] == 3


def test_a_picture_of_one_call_begins_with_everything_again(ask: Any) -> None:
    assert ask(at=3, root=1).json["props"]["pk-root"] == {"data": 0}
    assert "pk-root" not in ask(at=3).json["props"]


@pytest.mark.parametrize("page", ["", "nothing", "runs"])
def test_a_page_without_such_parts_is_refused(ask: Any, page: str) -> None:
    assert ask(page=page).status_code == 404
