"""What a page loads is compressed, and the same bytes come out of it."""

import gzip
import re
from typing import Any

import pyarrow as pa
import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

BASE = "http://127.0.0.1"
OVERVIEW_BYTES, CHARTS_BYTES = 1_000_000, 2_300_000
"""What a browser may have to load for the overview with its table, and for a page with charts of Plotly."""

CODINGS = "gzip, deflate, br, zstd"
"""What Chromium names on a loopback address."""


@pytest.fixture
def client(data: Data) -> Any:
    return build_app(data, Access(None)).server.test_client()


def get(client: Any, path: str, coding: str) -> Any:
    with client.get(path, base_url=BASE, headers={"Accept-Encoding": coding}) as answer:
        answer.get_data()
        return answer


def scripts(client: Any) -> list[str]:
    page = get(client, "/overview", "identity").text
    return re.findall(r'(?:src|href)="(/?(?:_dash-component-suites|assets)/[^"]+)"', page)


def test_a_first_visit_loads_a_quarter_and_plotly_only_where_it_draws(client: Any) -> None:
    asked = [f"/{each.lstrip('/')}".replace("&amp;", "&") for each in scripts(client)]
    grid, plotly = "dash_ag_grid/async-community.js", "plotly/package_data/plotly.min.js"
    first = sum(len(get(client, path, CODINGS).data) for path in asked)
    later = [len(get(client, f"/_dash-component-suites/{name}", CODINGS).data) for name in (grid, plotly)]

    assert len(asked) > 10
    assert not any("plotly.min" in path for path in asked)
    assert first + later[0] < OVERVIEW_BYTES
    assert first + sum(later) < CHARTS_BYTES


@pytest.mark.parametrize("path", ["/assets/style.css", "/assets/timeline/track.js"])
def test_a_script_by_brotli_is_smaller_and_unpacks_to_the_same(client: Any, path: str) -> None:
    packed, zipped, plain = (get(client, path, coding) for coding in (CODINGS, "gzip", "identity"))

    assert (packed.headers["Content-Encoding"], zipped.headers["Content-Encoding"]) == ("br", "gzip")
    unpacked = pa.Codec("brotli").decompress(packed.data, len(plain.data), asbytes=True)
    assert unpacked == plain.data
    assert len(packed.data) < len(zipped.data)


def test_an_answer_is_gzip_which_is_made_faster(client: Any) -> None:
    assert get(client, "/_dash-layout", CODINGS).headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("path", ["/assets/style.css", "/assets/timeline/track.js", "/_dash-layout"])
def test_what_is_unpacked_is_what_an_old_browser_gets(client: Any, path: str) -> None:
    packed, plain = get(client, path, "gzip"), get(client, path, "identity")

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.data) == plain.data


def test_a_script_whose_address_has_its_date_is_kept_by_the_browser(client: Any) -> None:
    assert "immutable" in get(client, "/assets/style.css?m=1", "gzip").headers["Cache-Control"]
    assert "immutable" not in get(client, "/assets/style.css", "gzip").headers.get("Cache-Control", "")
