"""Every page lays out whatever the run; adding one is one file; no name becomes markup or is uploaded."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import captures
import numpy as np
import plotly.utils
import pytest
from dash.development.base_component import Component
from vramscope.dashboard import pages as pages_package
from vramscope.dashboard.address import Address
from vramscope.dashboard.components.panels import stack_table
from vramscope.dashboard.components.panels.stack_table import source
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Context, pages
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.analysis.folding import bytes_by_line, fold
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame, StackBuilder
from vramscope.model.trace import Action

NAMES = [page.name for page in pages()]


def laid_out(name: str, data: Data, **address: Any) -> Any:
    page = next(page for page in pages() if page.name == name)
    return page.layout(Context(data, Address(page.path, **address)))


def parts(layout: Any) -> Iterator[Component]:
    for top in layout if isinstance(layout, list) else [layout]:
        yield top
        yield from (part for part in top._traverse() if isinstance(part, Component))


def text(layout: Any) -> str:
    text = json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")  # as one reads it


def only(data: Data) -> str:
    (name,) = data.runs.paths()
    return name


def post(client: Any, inputs: dict[str, Any], states: dict[str, Any], output: str) -> Any:
    """What the browser sends when the first of *inputs* changed, to the callback of that *output*."""
    known = client.get("/_dash-dependencies", base_url="http://127.0.0.1").get_json()
    keys = [key.split(".") for key in inputs]
    found = next(
        each for each in known
        if [[i["id"], i["property"]] for i in each["inputs"]] == keys and output in each["output"]
    )  # fmt: skip
    outs = [out.rsplit(".", 1) for out in found["output"].strip(".").split("...")]
    wanted = [{"id": name, "property": prop} for name, prop in outs]

    def side(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            dict(zip(("id", "property"), key.split("."), strict=True), value=v) for key, v in values.items()
        ]

    body = {
        "output": found["output"], "outputs": wanted if len(wanted) > 1 else wanted[0],
        "inputs": side(inputs), "state": side(states), "changedPropIds": [next(iter(inputs))],
    }  # fmt: skip
    return client.post("/_dash-update-component", json=body, base_url="http://127.0.0.1")


def test_a_version_brings_the_header_with_it(open_program: Any, tmp_path: Path) -> None:
    """The chart asks when a version comes: a step that came by another answer would lag behind it."""
    program = open_program(tmp_path / "live")
    program.begin()
    for _ in range(4):
        program.step()
    data = Data(tmp_path)
    client = build_app(data, Access(None)).server.test_client()
    stored = Address("/overview", run=only(data)).stored
    states = {"address.data": stored, "version.data": None}
    answer = post(client, {"tick.n_intervals": 1}, states, "version.data").get_json()["response"]

    assert answer["version"]["data"]["step"] == 3
    assert "step 3" in str(answer["stand"]["data"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_every_page_lays_out(name: str, steps: int, run_at: Any, tmp_path: Path) -> None:
    run_at("gpt", steps=steps)
    data = Data(tmp_path)

    assert text(laid_out(name, data, run=only(data)))


@pytest.mark.parametrize("name", NAMES)
def test_every_id_is_there_once(name: str, data: Data) -> None:
    ids = [str(part.id) for part in parts(laid_out(name, data, run=only(data))) if hasattr(part, "id")]

    assert len(ids) == len(set(ids))


def test_no_graph_can_be_sent_to_the_cloud(data: Data) -> None:
    pages = [parts(laid_out(name, data, run=only(data))) for name in NAMES]
    graphs = [part for page in pages for part in page if part._type == "Graph"]

    assert graphs
    for graph in graphs:
        assert graph.config["showSendToCloud"] is False
        assert graph.config["plotlyServerURL"] == ""
        assert not graph.config["displayModeBar"]


def test_every_graph_says_in_words_what_it_shows(data: Data) -> None:
    for name in ("overview", "peak"):
        figures = [p for p in parts(laid_out(name, data, run=only(data))) if p._type == "Figure"]
        assert all(len(getattr(figure, "aria-label")) > 20 for figure in figures)
        assert figures


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_text(name: str, run_at: Any, tmp_path: Path, hostile: tuple[str, ...]) -> None:
    run_at("gpt", names=hostile)
    data = Data(tmp_path)
    layout = laid_out(name, data, run=only(data))
    drawn = "".join(text(part.figure) for part in parts(layout) if part._type == "Graph")
    shown = text(layout)

    assert not any(f"<{tag}" in drawn for tag in ("script", "b>", "a ", "span", "img"))
    assert not any(part._type in {"Markdown", "Iframe", "Script"} for part in parts(layout))
    assert "dangerously_allow_html" not in shown
    assert "A" * 1000 not in shown


def test_a_page_is_added_by_one_file(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather.py").write_text(
        "from dash import html\n"
        "from vramscope.dashboard.pages import Page\n"
        "def layout(context): return html.P('sunny')\n"
        "PAGE = Page('weather', 'Weather', 15, '/weather', layout, lambda app, data: None)\n"
    )
    monkeypatch.setattr(pages_package, "__path__", [*pages_package.__path__, str(tmp_path)])
    client = build_app(data, Access(None)).server.test_client()
    answer = go(client, "/weather", f"?run={only(data)}").get_json()["response"]

    assert "sunny" in json.dumps(answer["page"])
    entries = [json.loads(item["props"]["data-plain"]) for item in answer["menu"]["children"]]
    titles = [words for ((_, _, [words]),) in entries]
    assert titles[:4] == ["Runs", "Overview", "Weather", "Peak"]


def go(client: Any, path: str, search: str) -> Any:
    return post(
        client,
        {"location.pathname": path, "location.search": search, "ready.data": None},
        {"address.data": None},
        "page.children",
    )


@pytest.mark.parametrize(
    ("path", "search"),
    [("/overview", "?run=nothing"), ("/peak", "?run=../../etc/passwd"), ("/nowhere", ""), ("/overview", "")],
)
def test_an_address_of_nothing_is_reported_with_a_way_back(data: Data, path: str, search: str) -> None:
    client = build_app(data, Access(None)).server.test_client()
    page = json.dumps(go(client, path, search).get_json()["response"]["page"])

    assert "cannot be shown" in page or "This run is not here" in page
    assert '"href":"/"' in page.replace("\\", "")


def test_a_page_that_fails_is_a_page_that_says_so(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramscope.dashboard.pages.overview.headline", lambda *_: 1 / 0)
    client = build_app(data, Access(None)).server.test_client()
    answer = go(client, "/overview", f"?run={only(data)}")

    assert answer.status_code == 200
    assert "ZeroDivisionError" in answer.text


def test_two_apps_in_one_process_both_work(data: Data) -> None:
    clients = [build_app(data, Access(None)).server.test_client() for _ in range(2)]

    assert all("gpt" in go(client, "/overview", f"?run={only(data)}").text for client in clients)


@pytest.fixture
def client(data: Data) -> Any:
    return build_app(data, Access(None)).server.test_client()


def tick(client: Any, name: str, known: Any, *, is_shown: bool = True) -> Any:
    shown = {"run": name, "version": 0, "outcome": "finished"}
    said = Address("/overview", run=name).stored | ({"shown": shown} if is_shown else {})
    return post(
        client, {"tick.n_intervals": 3}, {"address.data": said, "version.data": known}, "version.data"
    )


def test_a_tick_without_news_sends_nothing(client: Any, data: Data) -> None:
    known = tick(client, only(data), None).json["response"]["version"]["data"]

    assert known["outcome"] == "finished"
    assert tick(client, only(data), known).status_code == 204


def test_a_run_that_disappears_raises_the_alarm(client: Any, data: Data, tmp_path: Path) -> None:
    name = only(data)
    shutil.rmtree(tmp_path / "gpt")

    assert tick(client, name, None).get_json()["response"]["version"]["data"]["outcome"] == "gone"


def test_a_link_to_no_run_says_what_to_do_and_of_no_last_state(client: Any) -> None:
    """The page says it; a banner over it would be about a state that was never read."""
    page = json.dumps(go(client, "/overview", "?run=never").get_json()["response"]["page"])

    assert "This run is not here" in page
    assert "serve the folder that has it" in page
    assert "shown" not in go(client, "/overview", "?run=never").get_json()["response"]["address"]["data"]
    assert tick(client, "never", None, is_shown=False).status_code == 204


def test_an_outcome_is_a_word(run_at: Any, tmp_path: Path) -> None:
    run_at("gpt", outcome=Outcome.FAILED)
    client = build_app(Data(tmp_path), Access(None)).server.test_client()

    assert "failed" in go(client, "/overview", f"?run={only(Data(tmp_path))}").text


def test_simulated_is_always_shown(client: Any, data: Data) -> None:
    for path in ("/overview", "/peak"):
        top = go(client, path, f"?run={only(data)}").get_json()["response"]["top"]
        assert "simulated" in json.dumps(top)


def test_a_table_has_at_most_500_rows_that_sum_up() -> None:
    builder = StackBuilder()
    ids = [builder.add([(f"f{i}", "/a.py", i)]) for i in range(2000)]
    code = fold(builder.build())
    live = bytes_by_line(code, np.array(ids), np.arange(1, 2001) * 512, np.ones(2000, "i8"))
    rows = stack_table.rows(code, live)

    assert len(rows) == 500
    assert sum(row["bytes"] for row in rows) == live.total_bytes
    assert len(json.dumps(rows)) < 150_000


def test_only_python_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("password")
    (tmp_path / "link.py").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "model.py").write_text("a = 1\nb = 2\nc = 3\n")

    for file in (str(tmp_path / "secret.txt"), str(tmp_path / "link.py"), "model.py"):
        assert source(Frame("<module>", file, 1)) is None
    found = source(Frame("<module>", str(tmp_path / "model.py"), 2))
    assert found is not None
    assert [line.text for line in found.lines] == ["a = 1", "b = 2", "c = 3"]


def test_a_source_that_changed_since_is_shown_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def forward(x):\n    return x\n")

    same, other = (
        json.dumps(stack_table.code(Frame(name, str(file), 2)), cls=plotly.utils.PlotlyJSONEncoder)
        for name in ("forward", "train")
    )

    assert "return x" in same
    assert "has changed" not in same
    assert "return x" in other
    assert "has changed since the recording" in other


ODD_FILES = {
    "snap_t26_train_fullstep.pickle", "snap_t210_compiled_ce_8dev.pickle", "snap_t21_deepstack263.pickle",
    "snap_t29_notrace_4503blocks.pickle", "snap_t22_oom_vit.json", "snap_tiny_expandable_2dev.pickle",
    "snap_anonymised_fixture.pickle", "snap_empty_1dev.pickle",
}  # fmt: skip
REAL_FILES = [
    *(captures.genuine_file(name) for name in ("expand_press", "ring", "streams")),
    *(path for path in captures.snapshots() if path.name in ODD_FILES),
]


@pytest.mark.parametrize("file", REAL_FILES, ids=lambda file: file.name)
def test_real_files_lay_out_on_every_page(file: Path) -> None:
    data = Data(file)
    client = build_app(data, Access(None)).server.test_client()
    for path in ("/", "/overview", "/peak"):
        answer = go(client, path, f"?run={only(data)}")

        assert answer.status_code == 200
        assert "An error in vramscope" not in answer.text


@pytest.mark.parametrize(("page", "output"), [("compare", "cp-content"), ("fragmentation", "fr-opening")])
def test_a_page_follows_a_run_that_grows(
    page: str, output: str, open_program: Any, run_at: Any, tmp_path: Path
) -> None:
    run_at("before", steps=1)
    program = open_program(tmp_path / "live")
    program.begin()
    program.step()
    data = Data(tmp_path)
    live, before = (next(name for name in data.runs.paths() if word in name) for word in ("live", "before"))
    said = Address(f"/{page}", run=live, other=before).stored
    client = build_app(data, Access(token=None)).server.test_client()

    def loading_text() -> str:
        inputs, states = {"version.data": {"run": live}}, {"address.data": said}
        return str(post(client, inputs, states, f"{output}.children").get_json())

    first = loading_text()
    program.malloc(100 << 20)
    program.event(Action.SEGMENT_ALLOC, 1 << 45, 900 << 20)
    program.step()
    data.refresh(live)
    second = loading_text()
    program.writer.close(Outcome.FINISHED)

    assert first != second
    assert ("1 step only after" if page == "compare" else "2 segments") in second
