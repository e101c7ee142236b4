"""The page of all ranks: what differs first, exact maxima at every zoom, and no event is read for it."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plotly.utils import PlotlyJSONEncoder
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data
from vramscope.dashboard.figures import rank_map
from vramscope.dashboard.pages import Context, compare, ranks
from vramscope.dashboard.queries.rank_answers import RankQueries, opened_address, queries_of
from vramscope.dashboard.queries.run_summaries import summarize
from vramscope.dashboard.runs import Library, one_rank
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.security import Access

from vramscope.analysis.rank_comparison.heat_map import heat_map
from vramscope.model.device import Device, Process
from vramscope.model.rank_summary import DeviceSummary, LineBytes, PeakPlace, RankSummary, StepRows
from vramscope.model.recording import Outcome
from vramscope.model.stacks import Frame
from vramscope.store import manifest as manifests
from vramscope.store.directory import MANIFEST
from vramscope.store.liveness import current_incarnation
from vramscope.store.manifest import Manifest
from vramscope.store.summaries import SUMMARY_FILE, StoredSummary, read_summary, write_summary

MIB = 1 << 20
N_RANKS, N_STEPS, ODD = 40, 60, 17


def peaks(rank: int) -> np.ndarray:
    found = np.random.default_rng(rank).integers(1000, 1010, N_STEPS) * MIB
    return found + (300 * MIB if rank == ODD else 0)


def write(run: Any, rank: int, n_ranks: int, n_steps: int, *, is_running: bool = False) -> None:
    """The manifest and the summary of one rank, and no events."""
    import os
    import socket

    host = socket.gethostname()
    process = Process(rank, n_ranks, host, os.getpid(), local_rank=rank % 8)
    most = peaks(rank)[:n_steps]
    lines = [LineBytes(900 * MIB, 3, (Frame("forward", "/net/block.py", 31),), "linear")]
    if rank == ODD:
        lines.append(LineBytes(300 * MIB, 1, (Frame("pad", "/net/data.py", 44),), ""))
    number = np.arange(n_steps)
    peak = int(most.max())
    device = DeviceSummary(
        device=Device(0, "cuda", "a card", 80 << 30, f"GPU-{rank}"),
        source="cuda",
        n_events=1000,
        peak={name: PeakPlace(peak, 0, 10**18) for name in ("allocated", "reserved")},
        lines=tuple(lines),
        other_bytes=peak - sum(line.n_bytes for line in lines),
        steps=StepRows.of(
            step=number, n_steps=number * 0 + 1, start_ns=number, end_ns=number + 1, allocated=most,
            reserved=most + MIB,
        ),
        findings=(),
    )  # fmt: skip
    outcome = Outcome.RUNNING if is_running else Outcome.FINISHED
    directory = run / f"rank{rank}"
    directory.mkdir(parents=True, exist_ok=True)
    made = Manifest(
        source="cuda", process=process, incarnation=current_incarnation(), devices=(device.device,),
        started_ns=10**18, outcome=outcome, ended_ns=0 if is_running else 10**18 + 1, id=f"{rank:032x}",
    )  # fmt: skip
    manifests.write(directory / MANIFEST, made, durable=False)
    summary = RankSummary(process, outcome, "", 10**18, 10**18 + n_steps, (device,))
    write_summary(directory / SUMMARY_FILE, StoredSummary(summary, made.id, is_final=not is_running))


@pytest.fixture
def job(tmp_path: Any) -> Data:
    for rank in range(N_RANKS):
        if rank != 5:
            write(tmp_path / "job", rank, N_RANKS, N_STEPS)
    return Data(tmp_path)


def page(data: Data, **changes: Any) -> str:
    (name,) = data.runs.paths()
    shown = ranks._layout(Context(data, Address("/ranks", run=name, **changes)))
    text = json.dumps(shown, cls=PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")  # as one reads it


def test_the_odd_rank_comes_first_with_its_line_and_the_missing_one_is_named(job: Data) -> None:
    text = page(job)

    assert "Rank 17 differs from the ranks that should be like it" in text
    assert "net/data.py:44 pad" in text
    assert "rank 5" in text
    assert "39 of 40 ranks recorded" in text
    assert "Rank 17 at its peak, beside rank" in text


def test_the_page_opens_no_run(job: Data) -> None:
    page(job)
    (name,) = job.runs.paths()

    assert not job.is_open(name)


def test_the_list_of_runs_reads_no_events_of_very_many_ranks(job: Data) -> None:
    (name,) = job.runs.paths()
    row = summarize(job, name)

    assert not job.is_open(name)
    assert row.n_devices == N_RANKS - 1
    assert row.peak_allocated_bytes == peaks(ODD).max()
    assert row.verdict == f"rank 5 missing, rank {ODD} odd"


@pytest.mark.parametrize("window", [{}, {"b0": 10, "b1": 20}, {"t0": 7, "t1": 9, "b0": 16, "b1": 19}])
def test_the_lightest_color_is_the_exact_maximum_of_the_window(job: Data, window: dict[str, int]) -> None:
    (name,) = job.runs.paths()
    found = queries_of(job).get(name)
    shown, steps = ranks._window(found, Address("/ranks", run=name, **window))
    grid = heat_map(found.table, "allocated", shown, steps, rank_map.MOST_CELLS)
    truth = max(int(peaks(rank)[steps[0] : steps[1]].max()) for rank in range(*shown) if rank != 5)

    assert rank_map.color_range(grid)[1] == grid.most_bytes.max() == truth


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"t0": 10, "t1": 20}, ((0, 40), (10, 20))),
        ({"b0": 10, "b1": 21}, ((10, 21), (3, 5))),
        ({"t0": None, "t1": None}, ((0, 40), (0, 60))),
        ({"t0": "x", "t1": 1e300}, ((0, 40), (0, 60))),
        ({"t0": 0, "t1": 5001}, ((0, 40), (0, 60))),
        ({"run": "other"}, ((0, 40), (3, 5))),
        (None, ((0, 40), (3, 5))),
    ],
)
def test_an_axis_that_a_zoom_does_not_name_keeps_its_own(job: Data, window: Any, expected: Any) -> None:
    (name,) = job.runs.paths()
    address = ranks._zoomed(window, Address("/ranks", run=name, t0=3, t1=5))

    assert address.run == name
    assert ranks._window(queries_of(job).get(name), address) == expected


def test_a_clicked_cell_of_several_ranks_is_the_rank_that_has_its_maximum(job: Data) -> None:
    (name,) = job.runs.paths()
    found = queries_of(job).get(name)

    assert ranks._picked(found, "allocated", {"rank": 16, "ranks": 8, "step": 3, "steps": 2}) == ODD
    assert ranks._picked(found, "allocated", {"rank": 5, "ranks": 1, "step": 3, "steps": 2}) is None
    assert ranks._picked(found, "allocated", {"rank": 5}) is None


def test_two_ranks_are_compared_by_line(job: Data) -> None:
    text = page(job, rank=3, other="r17")

    assert "Rank 3 at its peak, beside rank 17" in text
    assert "−300 MiB" in text
    assert f"{one_rank(next(iter(job.runs.paths())), 3)}" in text


def test_a_page_of_events_opens_one_rank_of_very_many(job: Data) -> None:
    name = next(iter(job.runs.paths()))

    assert opened_address(job, Address("/overview", run=name)).run == one_rank(name, ODD)
    assert opened_address(job, Address("/peak", run=name, rank=3)).run == one_rank(name, 3)
    assert opened_address(job, Address("/peak", run=one_rank(name, 3))).run == one_rank(name, 3)
    assert job.runs.whole_run(one_rank(name, 3)) == (name, 3)
    assert job.runs.whole_run(name) is None


def test_a_run_of_very_many_ranks_as_a_baseline_is_one_rank(job: Data) -> None:
    name = next(iter(job.runs.paths()))
    baseline = compare._other(job, Address("/compare", run=one_rank(name, 3), other=name))

    assert [each.process.rank for each in baseline.run.recordings] == [ODD]


def test_a_page_of_events_opens_all_of_few_ranks(tmp_path: Any) -> None:
    for rank in range(8):
        write(tmp_path / "few", rank, 8, 10)
    data = Data(tmp_path)
    address = Address("/overview", run=next(iter(data.runs.paths())))

    assert opened_address(data, address) == address


def test_one_rank_of_many_is_a_run_of_its_own(job: Data) -> None:
    (name,) = job.runs.paths()

    assert job.runs.path(one_rank(name, 17)).name == "rank17"
    with pytest.raises(Exception, match="no run of that name"):
        job.runs.path(one_rank(name, 999))


def test_a_running_job_is_followed_by_its_summaries(tmp_path: Any) -> None:
    for rank in range(4):
        write(tmp_path / "job", rank, 4, 10, is_running=True)
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    queries = RankQueries(data, look_every_s=0.0, share=float("inf"))
    first = queries.get(name)
    write(tmp_path / "job", 2, 4, 30, is_running=True)
    second = queries.get(name)

    assert (first.fleet.running, first.table.end_step) == ((0, 1, 2, 3), 10)
    assert second.version > first.version
    assert second.table.end_step == 30
    assert queries.get(name) is second


def test_names_out_of_a_run_are_data(job: Data) -> None:
    (name,) = job.runs.paths()
    place = job.runs.path(name) / "rank17" / SUMMARY_FILE
    stored = read_summary(place)
    assert stored is not None
    (device,) = stored.summary.devices
    line = LineBytes(300 * MIB, 1, (Frame("<b>x</b>", "/net/<img src=x>.py", 4),), "")
    lines = (*device.lines[:1], line)
    summary = replace(stored.summary, devices=(replace(device, lines=lines),))
    write_summary(place, replace(stored, summary=summary))

    assert "dangerously_allow_html" not in page(job)


def test_a_job_of_1024_ranks_and_1000_steps_moves_less_than_250_kilobytes() -> None:
    rank, step = (grid.reshape(-1) for grid in np.meshgrid(np.arange(1024), np.arange(1000), indexing="ij"))
    values = np.random.default_rng(0).integers(0, 1 << 36, len(rank))
    from vramscope.analysis.rank_comparison.heat_map import StepTable

    table = StepTable(rank, step, step * 0 + 1, values, values, 1024)
    grid = heat_map(table, "allocated", (0, 1024), (0, 1000), rank_map.MOST_CELLS)
    sent = json.dumps(rank_map.figure(grid, [[0, 1000], [0, 1024]]), cls=PlotlyJSONEncoder)

    assert grid.most_bytes.max() == values.max()
    assert len(sent) < 250_000


@pytest.mark.parametrize("path", ["/overview", "/peak", "/phases"])
def test_no_page_of_a_run_of_many_ranks_opens_more_than_one_of_them(tmp_path: Any, path: str) -> None:
    for rank in range(9):
        write(tmp_path / "job", rank, 9, 10)
    opened = []

    class Noticing(Library):
        def follow(self, path: Any, *more: Any) -> Any:
            opened.append(path)
            return super().follow(path, *more)

    data = Data(tmp_path, Noticing())
    app = build_app(data, Access(token=None))
    name = next(iter(data.runs.paths()))
    asked = {
        "output": "..menu.children...top.children...page.children...address.data...tick.interval...title.data"
        "...alarm.children..",
        "outputs": [{"id": each.partition(".")[0], "property": each.partition(".")[2]} for each in _GO],
        "inputs": [
            {"id": "location", "property": "pathname", "value": path},
            {"id": "location", "property": "search", "value": f"?run={name}&rank=4"},
            {"id": "ready", "property": "data", "value": None},
        ],
        "state": [{"id": "address", "property": "data", "value": None}],
        "changedPropIds": ["location.search"],
    }
    answer = app.server.test_client().post(
        "/_dash-update-component", json=asked, base_url="http://127.0.0.1:8050"
    )
    shown = answer.get_json()["response"]

    assert {place.name for place in opened} == {"rank4"}
    assert shown["address"]["data"]["run"] == one_rank(name, 4)
    assert "job · rank 4" in json.dumps(shown["top"], ensure_ascii=False)
    assert f"/ranks?run={name}&rank=4" in json.dumps(shown["menu"])


_GO = (
    "menu.children", "top.children", "page.children", "address.data", "tick.interval", "title.data",
    "alarm.children",
)  # fmt: skip
