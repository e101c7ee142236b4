"""The report is one file that needs nothing else, shows what the pages show, and no name in it is markup."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dash import dcc, html
from vramscope.dashboard.components.panels.stack_table import to_code
from vramscope.dashboard.report import EXPORT
from vramscope.dashboard.report.document import document
from vramscope.dashboard.report.static import Printer, script_json

from vramscope import load
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action


@pytest.fixture
def report(run_at: Any) -> str:
    return document(load(run_at("gpt", steps=3)))


def test_it_shows_the_peak_and_the_steps(report: str) -> None:
    assert '<h2 class="claim">Peak 8' in report
    assert "MLP.forward" in report
    assert "needed most" in report


def test_nothing_is_fetched(report: str) -> None:
    body = re.sub(r'<script type="text/plain" id="plotly">.*?</script>', "", report)

    assert not re.findall(r"(?:src|href)=\"(?!data:)", body)
    assert "default-src &#x27;none&#x27;" in body
    assert "url(" not in body


def test_every_drawing_has_its_figure(report: str) -> None:
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', report, re.DOTALL)[1])  # type: ignore[index]

    assert len(figures) == len(re.findall(r'class="drawing"', report)) >= 4


def test_the_peaks_of_the_steps_are_drawn_in_a_unit_of_bytes(run_at: Any) -> None:
    run = load(run_at("gpt", steps=3))
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', document(run), re.DOTALL)[1])  # type: ignore[index]
    (steps,) = (each for each in figures if each["layout"].get("xaxis", {}).get("tickprefix") == "step ")
    (whole,) = (trace for trace in steps["data"] if trace.get("uid") == "allocated")
    unit = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[steps["layout"]["yaxis"]["ticksuffix"].strip()]
    drawn = np.frombuffer(base64.b64decode(whole["y"]["bdata"]), f"<{whole['y']['dtype']}")

    (recording,) = run.recordings
    allocated, rows = recording.timeline().allocated_bytes, recording.steps
    edges = zip(rows.start_event.tolist(), rows.end_event.tolist(), strict=True)
    assert (drawn.astype("f8") * unit).tolist() == [allocated[start : end + 1].max() for start, end in edges]


def test_hostile_names_stay_text(run_at: Any, hostile: tuple[str, ...]) -> None:
    text = document(load(run_at("gpt", names=hostile)))

    for name in hostile:
        if "<" in name:
            assert name not in text
    assert "&lt;script&gt;window.pwned" in text


def test_an_empty_run_has_a_report(run_at: Any) -> None:
    assert "gpt" in document(load(run_at("gpt", steps=0)))


def test_it_is_written_where_it_was_asked_for(run_at: Any, tmp_path: Path) -> None:
    run = load(run_at("gpt"))

    assert EXPORT.write(run, tmp_path / "out" / "page.html") == [tmp_path / "out" / "page.html"]
    assert EXPORT.write(run, tmp_path / "folder") == [tmp_path / "folder" / "gpt.html"]


def test_components_become_html_with_everything_escaped() -> None:
    part = html.Div(
        [dcc.Store(id="s"), html.P("a < b", title='"x"', style={"flexGrow": "2"}), html.A("go", href="/x")],
        className="box",
    )

    expected = (
        '<div class="box"><p title="&quot;x&quot;" style="flex-grow: 2">a &lt; b</p><span>go</span></div>'
    )
    assert Printer().html(part) == expected


def test_json_cannot_end_its_script() -> None:
    assert "<" not in script_json({"name": "</script><script>"})


def test_a_button_that_opens_code_leaves_its_words() -> None:
    assert Printer().html(to_code("forward model.py:10", 3)) == "forward model.py:10"


def test_lines_that_rose_are_in_the_report(tmp_path: Path, open_program: Any) -> None:
    program = open_program(tmp_path / "grows")
    program.begin()
    for _ in range(3):
        program.malloc(30 << 20, program.stack("remember", 77))
        program.step()
    program.writer.close(Outcome.FINISHED)

    assert "remember" in document(load(tmp_path / "grows")).partition("What changed")[2]


def test_the_dashboard_gives_the_same_file(app: Any, view: Any) -> None:
    client = app.server.test_client()
    client.get("/?token=secret-token", base_url="http://127.0.0.1")
    given = client.get("/api/report", query_string={"run": view.run_id}, base_url="http://127.0.0.1")
    absent = client.get("/api/report", query_string={"run": "../../etc"}, base_url="http://127.0.0.1")

    assert given.headers["Content-Disposition"] == f'attachment; filename="{view.run_id}.html"'
    assert given.get_data(as_text=True) == document(view.run)
    assert absent.status_code == 404


def test_a_report_has_every_chapter_and_stays_below_three_megabytes(
    tmp_path: Path, open_program: Any
) -> None:
    program = open_program(tmp_path / "dies")
    program.begin()
    for _ in range(12):
        program.malloc(4 << 20, program.stack("remember", 77))
        program.step()
    program.event(Action.OOM, 0, 600 << 20, program.stack("remember", 78))
    program.flush()
    program.writer.close(Outcome.FAILED)
    text = document(load(tmp_path / "dies"))
    chapters = re.findall(r'<h2 class="chapter">([^<]*?)(?::.*?)?</h2>', text)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]

    assert chapters == ["Out of memory", "Leaks", "Peak", "Steps and phases", "Fragmentation", "Fit"]
    assert "Stacks of the largest lines" in text
    assert "heatmap" in {trace["type"] for figure in figures for trace in figure["data"]}
    assert text.count('class="swatch') > 12
    assert len(text.encode()) < 3_000_000
