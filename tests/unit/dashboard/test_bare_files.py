"""A message, a log and a snapshot with pinned memory: what they say is shown, and nothing else."""

import json
import pickle
from pathlib import Path
from typing import Any

import plotly.utils
import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components import header
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import Context, pages

from vramscope.cli import main

GIB = 1 << 30
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}.00 GiB. GPU 0 has a total "
    "capacity of 23.50 GiB of which 1.00 GiB is free. Of the allocated memory {held}.00 GiB is allocated by "
    "PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)
TITAN = "[titan] 2025-06-16 22:30:{s} - root - INFO - step: {step}  loss:  6.1  memory: {gib}.00GiB(52.28%)\n"


@pytest.fixture
def shown(tmp_path: Path) -> Any:
    """``shown(page, name, **address)``: the text of a page about the file of that name."""

    def show(name: str, file: str, **address: Any) -> str:
        data = Data(tmp_path)
        ids = {path.name: run for run, path in data.runs.paths().items()}
        named = {key: ids[value] for key, value in address.items()}
        page = next(page for page in pages() if page.name == name)
        context = Context(data, Address(page.path, run=ids[file], **named))
        layout = [header.incomplete(data.view(context.address)), page.layout(context)]
        return json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False).replace(
            "\u00a0", " "
        )

    return show


@pytest.mark.parametrize(("asked", "held"), [(2, 20), (7, 13)])
def test_what_would_fit_a_message_is_not_known_and_nothing_is_red(tmp_path, shown, asked, held):
    (tmp_path / "oom.txt").write_text(OOM.format(asked=asked, held=held))
    text = shown("fit", "oom.txt")

    assert "What would fit is not known" in text
    assert "vramscope run SCRIPT" in text
    assert "state-error" not in text
    assert '"banner quiet"' in text


def test_a_message_states_allocated_and_reserved_alone(tmp_path, capsys):
    path = tmp_path / "oom.txt"
    path.write_text(OOM.format(asked=2, held=20))
    assert main(["report", "--json", str(path)]) == 0
    peak = json.loads(capsys.readouterr().out)["recordings"][0]["peak"]
    assert main(["report", str(path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert peak == {
        "requested_bytes": None,
        "allocated_bytes": 20 * GIB,
        "active_bytes": None,
        "reserved_bytes": 21 * GIB,
    }
    assert ["peak", "unknown", "20.0", "GiB", "unknown", "21.0", "GiB"] in rows


def test_two_messages_are_compared_by_their_totals_without_lines_that_nobody_recorded(
    tmp_path, shown, capsys
):
    for name, held in (("a.txt", 17), ("b.txt", 20)):
        (tmp_path / name).write_text(OOM.format(asked=2, held=held))
    text = shown("compare", "b.txt", other="a.txt")
    assert main(["diff", str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]) == 0

    assert "3.00 GiB more at the peak (17.6 %), in what was recorded" in text
    assert "Peak of the whole run" in text
    assert not any(
        word in text for word in ("By line", "By category", "Both peaks by call", "no stack recorded")
    )
    assert "no stack recorded" not in capsys.readouterr().out


def test_a_peak_many_times_as_high_is_given_as_that_many_times(tmp_path, shown):
    for name, held in (("a.txt", 1), ("b.txt", 20)):
        (tmp_path / name).write_text(OOM.format(asked=2, held=held))

    assert "19.0 GiB more at the peak (20 times as much)" in shown("compare", "b.txt", other="a.txt")


def test_two_logs_without_events_are_compared_by_what_they_logged(tmp_path, shown):
    for name, more in (("a.log", 0), ("b.log", 5)):
        lines = [TITAN.format(s=10 + i, step=200 + i, gib=40 + i + more) for i in range(3)]
        (tmp_path / name).write_text("".join(lines))
    text = shown("compare", "b.log", other="a.log")

    assert "5.00 GiB more at the peak (11.9 %), in what was recorded" in text
    assert "47.0 GiB" in text
    assert "Peak of each step" not in text  # the log has the peak since its start, not that of a step


def test_pinned_host_memory_is_shown_by_line_where_the_device_is(tmp_path, shown):
    frames = [{"filename": "/home/me/load.py", "line": 31, "name": "pin"}]

    def entry(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
        place = {"addr": address, "size": size, "stream": 0, "frames": frames}
        return place | {"action": action, "time_us": time_us}

    host = [entry("segment_alloc", 1 << 20, 3 << 20, 5), entry("alloc", 1 << 20, 3 << 20, 6)]
    device = [entry("segment_alloc", 1 << 30, 20 << 20, 1), entry("alloc", 1 << 30, 2 << 20, 2)]
    block = {"size": 3 << 20, "requested_size": 3 << 20, "address": 1 << 20, "state": "active_allocated"}
    segment = {"device": -1, "address": 1 << 20, "total_size": 3 << 20, "stream": 0, "segment_type": "small"}
    held = segment | {"blocks": [block | {"frames": frames}]}
    snapshot = {"segments": [], "device_traces": [device], "host_traces": host, "host_segments": [held]}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot))
    text = shown("waterfall", "a.pickle")

    assert "3.00 MiB of pinned host memory in use at its peak" in text
    assert "load.py:31 pin" in text
    assert "3.00 MiB were pinned then" in text
