"""A recording draws every page in a notebook: the figures of the page, without its stylesheet."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vramscope.dashboard.pages import pages

from vramscope import load
from vramscope.errors import MissingExtraError, UnknownNameError, UsageError
from vramscope.model.counters import Counters
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.trace import Action

MIB = 1 << 20
PEAK_BYTES = 86 * MIB
"""The recorded program has 20 MiB of parameters, two functions of four blocks of 8 MiB, 2 MiB of gradient."""


@pytest.fixture
def run(run_at: Any) -> Run:
    return load(run_at("gpt", steps=8))


@pytest.fixture
def recording(run: Run) -> Recording:
    return run.recordings[0]


def values(packed: Any) -> Any:
    if not isinstance(packed, dict):
        return np.array(packed)
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).astype("f8")


def trace(figure: Any, name: str) -> Any:
    return next(each for each in figure.to_plotly_json()["data"] if each.get("name") == name)


def test_the_overview_shows_the_exact_peak(recording: Recording) -> None:
    figure = recording.figure()
    drawn = trace(figure, "allocated")

    assert drawn["meta"] == "MiB"
    assert values(drawn["y"]).max() * MIB == PEAK_BYTES
    assert "86.0\u00a0MiB" in figure.layout.title.text


def test_the_peak_is_one_picture_of_all_its_bytes(recording: Recording) -> None:
    (icicle,) = recording.figure("peak").to_plotly_json()["data"]

    assert values(icicle["values"])[0] * MIB == PEAK_BYTES


def test_the_fragmentation_is_drawn_as_parts_that_sum_up_to_reserved(recording: Recording) -> None:
    figure = recording.figure("fragmentation")
    areas = [each for each in figure.to_plotly_json()["data"] if each.get("stackgroup") == "parts"]
    total = sum(values(area["y"]) for area in areas)

    assert [area["name"] for area in areas][:1] == ["requested"]
    assert total.max() * MIB == recording.timeline().reserved_bytes.max()


def test_the_bands_of_the_allocations_are_as_high_as_what_is_allocated(recording: Recording) -> None:
    figure = recording.figure("allocations")
    (image,) = figure.layout.images
    png = base64.b64decode(image.source.partition(",")[2])
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT")
    packed = png[start + 4 : start + 4 + struct.unpack(">I", png[start - 4 : start])[0]]
    rows = np.frombuffer(zlib.decompress(packed), "u1").reshape(height, 1 + 4 * width)
    opaque = (rows[:, 1:].reshape(height, width, 4)[..., 3] > 0).sum(axis=0)
    bytes_per_row = image.sizey * MIB / height

    assert not rows[:, 0].any()
    assert opaque.max() * bytes_per_row == pytest.approx(PEAK_BYTES, abs=bytes_per_row)
    # A column shows its maximum: the last one has the 4 MiB of the last optimizer step on the parameters.
    assert opaque[-1] * bytes_per_row == pytest.approx(24 * MIB, abs=bytes_per_row)


@pytest.fixture
def eventful(tmp_path: Path, open_program: Any) -> Run:
    """A run that leaks 4 MiB a step, was sampled, and fails to allocate: every page has something to draw."""
    program = open_program(tmp_path / "eventful")
    program.begin()
    for _ in range(12):
        program.step()
        program.malloc(4 * MIB, program.stack("remember", 77))
        program.flush()
    program.event(Action.OOM, 0, 600 * MIB, program.stack("ask", 91))
    program.flush()
    sampled = {"device_used_bytes": 700 * MIB, "device_total_bytes": 1 << 30, "reserved_bytes": 512 * MIB}
    columns = {name: np.full(2, value) for name, value in sampled.items()}
    program.writer.append(Counters.of(time_ns=program.clock + np.arange(2), **columns), 0)
    program.writer.close(Outcome.FAILED)
    return load(tmp_path / "eventful")


def test_every_page_about_a_run_has_a_figure_with_its_data(eventful: Run) -> None:
    recording = eventful.recordings[0]
    for page in pages():
        if page.about_run:
            others = {"other": recording} if page.name == "compare" else {}
            figure = (recording if page.reads_events else eventful).figure(page.name, **others)

            assert figure.data, page.name
            assert figure.layout.title.text, page.name
            assert figure.layout.paper_bgcolor is None, page.name


def test_a_page_that_has_nothing_to_draw_says_so_in_its_title(recording: Recording) -> None:
    for name, title in (
        ("leaks", "Nothing leaks"),
        ("oom", "No allocation failed"),
        ("waterfall", "not sampled"),
    ):
        figure = recording.figure(name)

        assert not figure.data
        assert title in figure.layout.title.text


def test_a_theme_is_chosen_or_that_of_plotly(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io

    light = trace(recording.figure("overview", dark=False), "allocated")["line"]["color"]
    dark = trace(recording.figure("overview", dark=True), "allocated")["line"]["color"]
    monkeypatch.setattr(plotly.io.templates, "default", "plotly_dark")

    assert light != dark
    assert trace(recording.figure(), "allocated")["line"]["color"] == dark


def test_names_in_a_title_are_no_markup(run_at: Any, hostile: tuple[str, ...]) -> None:
    for page in ("overview", "peak"):
        text = load(run_at(page, names=hostile)).figure(page).to_json()

        assert "<script>window" not in text
        assert "<img" not in text


def test_what_cannot_be_drawn_is_a_sentence(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ".*".join(sorted(page.name for page in pages() if page.about_run))
    with pytest.raises(UnknownNameError, match=f"'timeline'.*{names}"):
        recording.figure("timeline")
    with pytest.raises(UsageError, match="other="):
        recording.figure("compare")
    with pytest.raises(UsageError, match=r"run\.figure\('ranks'\)"):
        recording.figure("ranks")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r'pip install "vramscope\[dashboard\]"'):
        recording.figure()
