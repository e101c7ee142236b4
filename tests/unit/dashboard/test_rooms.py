"""Leaks, failed allocations and comparisons as the analyses found them, or their absence explained."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plotly.utils
import pytest
import torch
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import series_of
from vramscope.dashboard.components.header import shown_outcome
from vramscope.dashboard.components.panels.past import steps_with_past
from vramscope.dashboard.data import Data
from vramscope.dashboard.figures.device import figure, positions, stacked
from vramscope.dashboard.figures.drawing.series import TIME, has_clock
from vramscope.dashboard.figures.drawing.theme import unpack
from vramscope.dashboard.pages import Context, pages
from vramscope.dashboard.pages.runs import row
from vramscope.dashboard.pages.waterfall import _axis
from vramscope.dashboard.queries.run_summaries import _verdict, summarize
from vramscope.dashboard.runs import Pace

import vramscope
from vramscope.analysis.waterfall import Waterfall
from vramscope.model.marks import Note, Phase, Steps
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action
from vramscope.units import format_bytes

MIB = 1 << 20


def shown(name: str, data: Data, run: str, **address: Any) -> str:
    page = next(page for page in pages() if page.name == name)
    layout = page.layout(Context(data, Address(page.path, run=run, **address)))
    text = json.dumps(layout, cls=plotly.utils.PlotlyJSONEncoder, ensure_ascii=False)
    return text.replace("\u00a0", " ")  # as one reads it


@pytest.fixture
def world(tmp_path: Any, open_program: Any) -> Data:
    """A run that leaks 4 MiB a step and then fails, and one of the same steps that does neither."""
    bad, good = open_program(tmp_path / "bad"), open_program(tmp_path / "good")
    for program in (bad, good):
        program.begin()
        for _ in range(12):
            program.step()
            if program is bad:
                program.malloc(4 * MIB, program.stack("remember", 77))
                program.flush()
    bad.event(Action.OOM, 0, 600 * MIB, bad.stack("ask", 91))
    for program in (bad, good):
        program.flush()
        program.writer.close(Outcome.FINISHED)
    return Data(tmp_path)


def run(data: Data, word: str) -> str:
    names: list[str] = [name for name in data.runs.paths() if name.startswith(word)]
    return names[0]


SMI = """timestamp, index, memory.used [MiB], memory.total [MiB]
2026/01/03 15:36:53.507, 0, 1129 MiB, 40960 MiB
2026/01/03 15:36:54.507, 0, 2000 MiB, 40960 MiB
"""


def test_a_log_of_nvidia_smi_claims_nothing_beyond_torch(tmp_path: Path) -> None:
    (tmp_path / "gpu.csv").write_text(SMI)
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    text = shown("waterfall", data, name)
    parts = stacked(data.ask(data.view(Address("/waterfall", run=name)), "waterfall"))

    assert "beyond torch's allocator" not in text
    assert "used, by torch or not" in text
    assert parts["used"].tolist() == [1129 * MIB, 2000 * MIB]
    assert not parts["outside"].any()


def test_reserved_bytes_that_nobody_recorded_are_no_zeros(tmp_path: Path) -> None:
    """A profile of PyTorch that has no totals: 1 KiB stays allocated, and no segment is known."""

    def event(ts: int, n_bytes: int) -> dict[str, Any]:
        args = {"Device Type": 1, "Device Id": 0, "Addr": 4096 + abs(n_bytes), "Bytes": n_bytes}
        return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": args}

    trace = {"schemaVersion": 1, "traceEvents": [event(1, 512), event(2, 1024), event(3, -512)]}
    (tmp_path / "job.pt.trace.json").write_text(json.dumps(trace))
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    overview = shown("overview", data, name)

    assert not data.view(Address("/overview", run=name)).recording.has_reserved
    assert overview.count("not recorded") >= 2
    assert "0 B reserved" not in overview
    assert "-1.00 KiB" not in overview
    assert "−1.00 KiB" not in overview
    assert '"Reserved"' not in shown("peak", data, name)


def test_a_leak_is_shown_with_its_line_and_its_rate(world: Data) -> None:
    text = shown("leaks", world, run(world, "bad"))

    assert "4.00 MiB more with every step" in text
    assert "remember model.py:77" in text


def test_a_leak_is_shown_with_the_source_of_the_line_that_keeps_it() -> None:
    data = Data(Path(__file__).parents[3] / "sample_traces")
    text = shown("leaks", data, run(data, "gan-retain-graph"))

    assert "Kept at " in text
    assert "gan_retain_graph.py:41: history.append(loss_d)" in text
    assert text.count("Kept at ") == 1  # the line of the leak is another one
    assert "Compared at the same point of 8 steps." in text
    assert "over the last 7 of 8 compared" in text
    # The program was recorded elsewhere: its source is in the recording.
    number, code = (text.index(word) for word in ('"  41 "', "        history.append(loss_d)"))
    assert 0 < code - number < 200


def test_a_prediction_ran_nothing_and_has_no_clock() -> None:
    data = Data(Path(__file__).parents[3] / "sample_traces")
    name = run(data, "predicted")
    view = data.view(Address(run=name))

    assert view.recording.trace.has_clock
    assert not has_clock(view.recording)
    assert "events (this source has no clock)" in shown("overview", data, name)
    assert " ms · step" not in shown("overview", data, name)
    assert shown_outcome(view.run.outcome, view.recording.source) is Outcome.FILE


def test_the_samples_of_a_device_lie_where_the_timeline_has_them() -> None:
    data = Data(Path(__file__).parents[3] / "sample_traces")
    view = data.view(Address(run=run(data, "transformer-cuda")))
    found, (origin, _) = data.ask(view, "waterfall"), _axis(data, view)
    series = series_of(data, view, TIME)

    x, _ = positions(found, view.recording.steps, origin)
    at = series.device_used.position.tolist()
    assert x.tolist() == pytest.approx(at, abs=1e-6)


def test_the_absence_of_leaks_is_stated(world: Data) -> None:
    assert "Nothing leaks" in shown("leaks", world, run(world, "good"))


def test_a_failed_allocation_is_shown_with_the_way_there(world: Data) -> None:
    text = shown("oom", world, run(world, "bad"))

    assert "tried to allocate 600 MiB with" in text
    assert "/peak?" in text
    assert "No allocation failed" in shown("oom", world, run(world, "good"))


LEAKING = """
import sys

import torch

import vramscope

kept = []
with vramscope.record(sys.argv[1], device="simulated", capacity="40 MiB", quiet=True) as recorder:
    for _ in range(24):
        kept.append(torch.empty(2 << 20, dtype=torch.uint8))
        recorder.step()
"""


def test_a_failure_by_a_leak_leads_to_the_leak(tmp_path: Path) -> None:
    # In a process of its own: what other tests keep would fill the 40 MiB in the first step.
    subprocess.run([sys.executable, "-c", LEAKING, str(tmp_path / "leaking")], check=True, timeout=120)
    data = Data(tmp_path)

    text = shown("oom", data, run(data, "leaking"))

    assert re.search(r'"See the finding of the leak[^]]*\], "className": "link", "href": "/leaks[?]', text)


def test_two_runs_are_compared_step_by_step(world: Data) -> None:
    text = shown("compare", world, run(world, "bad"), other=run(world, "good"))

    assert "12 steps side by side" in text
    assert "remember" in text
    assert "The same" in shown("compare", world, run(world, "good"), other=run(world, "good"))


def test_a_rank_is_named_in_the_address(world: Data) -> None:
    name = run(world, "good")

    assert "12 steps" in shown("compare", world, run(world, "bad"), other=f"{name}.r0.d0")


def test_a_run_alone_has_nothing_to_compare_with(data: Data) -> None:
    (name,) = data.runs.paths()

    assert "Nothing to compare with" in shown("compare", data, name)


LOG = "step: {} allocated: {} GiB reserved: {} GiB\n"


def test_a_log_has_its_peaks_and_its_runs_in_the_list(tmp_path: Path) -> None:
    text = "".join(LOG.format(step, step, step + 2) for step in (1, 2, 3))
    (tmp_path / "one.log").write_text(text)
    (tmp_path / "two.log").write_text(f"{text}{text}")
    data = Data(tmp_path)
    one, two = (row(name, summarize(data, name)) for name in sorted(data.runs.paths()))

    assert (one["allocated_bytes"], one["reserved_bytes"]) == (3 << 30, 5 << 30)
    assert (one["is_least"], one["devices"], one["runs"]) == (True, 1, 1)
    assert (two["devices"], two["runs"]) == (1, 2)
    # The levels rise by a third each: a picture of 3, not of a made-up beginning at 0.
    assert sorted(set(one["drawn"][0])) == [chr(97 + round(each / 5 * 25)) for each in (1, 2, 3)]


def test_a_log_has_its_peaks_on_the_pages_and_a_step_that_says_none_has_none(tmp_path: Path) -> None:
    lines = [LOG.format(1, 3, 4), "step: 2 memory reserved: 9 GiB\n", LOG.format(3, 5, 6)]
    (tmp_path / "train.log").write_text("".join(lines))
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    known = steps_with_past(data, data.view(Address("/phases", run=name)))

    for page in ("overview", "peak", "allocations"):
        assert "Peak at least 5.00 GiB allocated, 9.00 GiB reserved" in shown(page, data, name)
    assert "step 3 needed most: at least 5.00 GiB" in shown("phases", data, name)
    assert (known.index.tolist(), known.found.per_step.allocated_bytes.tolist()) == (
        [1, 3],
        [3 << 30, 5 << 30],
    )


def of_message(folder: Path, free: str, allocated: str, reserved: str) -> tuple[Data, str]:
    """Return a log that has only torch's message of a failed request, and its id."""
    (folder / "train.log").write_text(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which "
        f"{free} Of the allocated memory {allocated} is allocated by PyTorch, and {reserved} is "
        "reserved by PyTorch but unallocated."
    )
    data = Data(folder)
    (name,) = data.runs.paths()
    return data, name


def test_a_peak_below_the_limit_of_its_process_is_a_share_of_that(tmp_path: Path) -> None:
    data, name = of_message(tmp_path, "12.00 GiB is free. 10.00 GiB allowed;", "8.00 GiB", "1.00 GiB")
    overview = shown("overview", data, name)

    assert "90 % of the 10.0 GiB allowed" in overview
    assert "of 24.0 GiB" not in overview


def test_totals_of_a_message_are_shown_as_no_course_and_no_segments(tmp_path: Path) -> None:
    data, name = of_message(tmp_path, "1.00 GiB is free.", "16.00 GiB", "4.00 GiB")

    assert "Peak at least 16.0 GiB allocated, 20.0 GiB reserved" in shown("peak", data, name)
    assert "No segments were recorded" in shown("fragmentation", data, name)
    assert "the largest free one for such requests: at most 4.00 GiB" in shown("oom", data, name)
    for page in ("overview", "oom"):
        assert shown(page, data, name).count("to allocate 2.00 GiB") == 1 + (page == "oom")
        assert "no stack recorded" not in shown(page, data, name)
        assert "Into the failure" not in shown(page, data, name)
    assert "20.0 GiB" not in shown("waterfall", data, name).split("All bytes of the device")[1]


def test_samples_without_a_clock_lie_at_their_steps(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("".join(LOG.format(step, 5, 6) for step in (10, 25, 40)))
    data = Data(tmp_path)
    (name,) = data.runs.paths()
    view = data.view(Address("/waterfall", run=name))
    found = data.ask(view, "waterfall")
    x, word = positions(found, view.recording.steps, 0)

    assert (x.tolist(), word) == ([10, 25, 40], "step")
    assert positions(found, Steps.of(), 0)[0].tolist() == [0, 1, 2]
    drawn = figure(found, view.recording.steps, 0, 0)
    assert unpack(drawn["data"][0]["x"]).tolist() == [10, 25, 40, 55]  # the last level has room as well
    parts = stacked(found)
    assert parts["unallocated"].tolist() == [1 << 30] * 3
    assert sum(parts.values()).tolist() == [6 << 30] * 3


SAMPLES = Path(__file__).parents[3] / "sample_traces"


def test_the_waterfall_shows_every_part_and_who_says_so() -> None:
    data = Data(SAMPLES / "transformer-cuda")
    (name,) = data.runs.paths()
    text = shown("waterfall", data, name)

    reserved = json.loads((SAMPLES / "transformer-cuda.expected.json").read_text())["peak_bytes"]["reserved"]
    assert f"{reserved // MIB + 500} MiB of 80.2 GiB used on the device" in text
    chart, bars = text.split("All bytes of the device")
    assert "this process outside of torch" in bars
    assert "this process outside of torch" in chart.split("The device over time")[1]
    assert "NVML less torch's counters" in bars


def test_the_areas_of_the_device_sum_up_to_what_is_used() -> None:
    data = Data(SAMPLES / "transformer-cuda")
    found = data.ask(data.view(Address(run=next(iter(data.runs.paths())))), "waterfall")
    total = sum(stacked(found).values())

    known = found.used_bytes >= 0
    assert known.any()
    assert np.abs(total - found.used_bytes)[known].max() <= 16 * MIB


@pytest.mark.parametrize(
    ("last_ms", "unit", "end"),
    [(148, " ms", 148), (1999, " s", 1.999), (600_000, " min", 10), (3 * 3_600_000, " h", 3)],
)
def test_the_axis_of_the_device_is_in_the_unit_that_its_end_is_said_in(
    last_ms: int, unit: str, end: float
) -> None:
    samples = Waterfall.of(time_ns=[0, last_ms * 10**6], used_bytes=[1 << 20, 2 << 20])
    drawn = figure(samples, Steps.of(), 1, 0)
    axis = drawn["layout"]["xaxis"]

    assert axis["ticksuffix"] == unit
    assert axis["range"] == [0, pytest.approx(end)]
    assert drawn["data"][-1]["x"] == [pytest.approx(end)] * 2  # the chosen sample is the last one


def test_the_device_is_drawn_over_the_time_of_the_strip_above_it() -> None:
    """The sampler reads once more after the last event, which the strip ends with."""
    data = Data(SAMPLES / "transformer-cuda")
    view = data.view(Address(run=next(iter(data.runs.paths()))))
    trace, sampled = view.recording.trace, data.ask(view, "waterfall")
    drawn = figure(sampled, view.recording.steps, sampled.fullest, *_axis(data, view))
    start, end_ms = drawn["layout"]["xaxis"]["range"]

    (begin,) = view.recording.steps.start_ns[:1].tolist()
    first = min(int(trace.time_ns[0]), begin, int(view.recording.counters.time_ns[0]))
    assert int(sampled.time_ns[-1]) > int(trace.time_ns[-1])
    assert end_ms * 1e6 == pytest.approx(int(trace.time_ns[-1]) - first)
    assert 0 <= start < end_ms


def test_a_device_that_nobody_sampled_is_explained(data: Data) -> None:
    (name,) = data.runs.paths()

    assert "The device was not sampled" in shown("waterfall", data, name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch without a CUDA device")
def test_a_run_without_a_device_is_said_to_have_none(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight])
    with vramscope.record(tmp_path / "run", mode="counters", quiet=True):
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
    world = Data(tmp_path)
    (name,) = world.runs.paths()

    for page in ("phases", "leaks", "peak", "fragmentation", "allocations", "oom", "fit", "waterfall"):
        assert "There was no CUDA device" in shown(page, world, name), page


def test_levels_of_all_steps_are_shown_where_some_have_events(tmp_path: Path) -> None:
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters())
    with vramscope.record(tmp_path / "run", every=10, device="simulated", quiet=True):
        for _ in range(25):
            net(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    world = Data(tmp_path)
    page = shown("leaks", world, run(world, "run"))

    assert "Allocated memory does not grow" in page
    assert "Levels and peaks by step" in page
    assert "Which lines allocate" not in page  # the steps with events say it


@pytest.fixture
def ranks(tmp_path: Path, open_program: Any) -> Data:
    """Three ranks; the second holds 90 MiB more, the third stops after two of five steps."""
    for rank in range(3):
        program = open_program(tmp_path / "job", rank=rank)
        program.begin()
        if rank == 1:
            program.malloc(90 * MIB, program.stack("uneven", 7))
        for _ in range(2 if rank == 2 else 5):
            program.step()
        program.writer.close(Outcome.FINISHED)
    return Data(tmp_path)


def test_ranks_stand_beside_one_another_at_one_moment_and_at_their_own_peaks(ranks: Data) -> None:
    text = shown("compare", ranks, run(ranks, "job"))

    assert "All 3 together" in text
    assert text.count('"176 MiB"') >= 1  # 20 + 90 + 64 and a gradient of 2: the second rank's own peak
    assert "rank=1&device=0&at=" in text


def test_a_run_of_one_rank_has_no_such_table(world: Data) -> None:
    assert "together" not in shown("compare", world, run(world, "good"))


@pytest.mark.usefixtures("world")
def test_the_other_run_is_followed_too(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "other")
    program.begin()
    for _ in range(3):
        program.step()
    data = Data(tmp_path)
    other = run(data, "other")
    before = shown("compare", data, run(data, "good"), other=other)
    program.step()
    program.flush()
    data.refresh(other)
    after = shown("compare", data, run(data, "good"), other=other)
    program.writer.close(Outcome.FINISHED)

    assert "cp-tick" in before
    assert "3 steps side by side" in before
    assert "4 steps side by side" in after


def test_nobody_looks_again_at_a_run_that_is_finished(world: Data) -> None:
    assert "cp-tick" not in shown("compare", world, run(world, "bad"), other=run(world, "good"))


def test_a_peak_in_evaluation_is_not_attributed_to_a_step(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "evaluated")
    program.begin()
    for _ in range(3):
        program.free(program.malloc(30 * MIB, program.stack("forward", 40)))
        program.step()
    with program.phase(Phase.EVAL):
        program.free(program.malloc(300 * MIB, program.stack("test", 50)))
    program.flush()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)

    page = shown("phases", data, run(data, "evaluated"))

    recording = data.view(Address("/phases", run=run(data, "evaluated"))).recording
    peak = format_bytes(recording.peak().allocated.n_bytes)
    assert f"Peak {peak}, outside of every step, in eval" in page
    assert "Of the steps, step" in page


def test_a_step_that_is_highest_between_its_phases_is_shown_so(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "odd")
    program.begin()
    for _ in range(3):
        program.free(program.malloc(300 * MIB, program.stack("check", 40)))
        program.step()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)

    assert "needed most: 320 MiB, between phases" in shown("phases", data, run(data, "odd"))


def test_a_run_before_its_first_step_shows_what_is_known_so_far(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "early")
    program.begin()
    program.flush()
    data = Data(tmp_path, pace=Pace(scan_s=-1.0, refresh_s=0.0, share=1e9))
    name = run(data, "early")
    before = shown("phases", data, name)
    program.step()
    data.refresh(name)
    begun = shown("phases", data, name)
    program.writer.close(Outcome.FINISHED)
    data.refresh(name)
    ended = shown("phases", data, name)

    assert "No step has ended so far" in before
    assert "So far: 2 events, 20.0 MiB allocated now" in before
    assert "data-waits" in before
    assert "data-waits" not in begun
    # 20 MiB of the model, eight activations of 8 MiB, and one gradient of 2 MiB beside them.
    assert "Step 0 is the first so far: 86.0 MiB, in backward" in begun
    assert "Step 0 needed most: 86.0 MiB, in backward" in ended


@pytest.mark.parametrize(
    ("outcome", "word", "reach"),
    [
        (Outcome.FINISHED, "fine", ""),
        (Outcome.FAILED, "info", ", until "),
        (Outcome.DIED, "info", ", as far as it was written"),
    ],
)
def test_a_run_that_was_broken_off_is_not_called_fine(
    outcome: Outcome, word: str, reach: str, run_at: Any
) -> None:
    path = run_at("steady", steps=8, outcome=outcome)
    text = shown("overview", data := Data(path.parent), run(data, "steady"))

    assert f"severity {word}" in text
    assert f"Steady over 8 steps{reach}" in text
    assert reach or "Steady over 8 steps," not in text


def test_one_line_that_is_reached_on_two_ways_rises_once(open_program: Any, tmp_path: Path) -> None:
    program = open_program(tmp_path / "ways")
    program.begin()
    program.step()
    for caller in (20, 30):
        frames = [("keep", "/home/me/model.py", 50), ("train", "/home/me/train.py", caller)]
        program.malloc(16 * MIB, program.stacks.add(frames))
    program.step()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    text = shown("phases", data, run(data, "ways")).partition("What changed")[2]

    assert text.count("model.py:50") == 2  # in the cell and in its title
    assert "+32.0 MiB" in text


def test_a_growing_batch_is_shown_as_such_and_not_as_a_leak(tmp_path: Any) -> None:
    code = (
        "import sys, torch, vramscope\n"
        "model = torch.nn.Linear(128, 128)\n"
        "with vramscope.record(sys.argv[1], device='simulated', quiet=True):\n"
        "    for step in range(16):\n"
        "        x = torch.randn(128 * max(1, step - 7), 128)\n"
        "        model(x).square().mean().backward()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "grows")], check=True, timeout=120)
    data = Data(tmp_path)
    text = shown("leaks", data, run(data, "grows"))

    assert "The batch grows" in text
    assert "no leak" in text
    assert "A leak" not in text
    view = data.view(Address("/leaks", run=run(data, "grows")))
    assert _verdict(view.run, view.recording) == "batch grows"


def test_a_simulated_device_that_was_full_is_neither_fine_nor_without_a_failure(
    open_program: Any, tmp_path: Path
) -> None:
    program = open_program(tmp_path / "full")
    program.writer.note(Note("simulated_oom", "the simulated device of 1.00 GiB was full", 1 << 30), 0)
    program.begin()
    for _ in range(9):
        program.step()
    program.writer.close(Outcome.FINISHED)
    data = Data(tmp_path)
    name = run(data, "full")

    assert "The simulated device of 1.00 GiB was full" in shown("oom", data, name)
    assert "severity fine" not in shown("overview", data, name)
    assert summarize(data, name).verdict == "ran out of memory"


def test_of_events_that_are_missing_no_page_says_that_nothing_happened(run_at: Any) -> None:
    path = run_at("damaged", steps=9)
    file = path / "rank0" / "events-0.arrows"
    data = bytearray(file.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 300] = b"\xaa" * 300
    file.write_bytes(data)
    opened = Data(path.parent)
    name = run(opened, "damaged")

    assert "Whether an allocation failed is not known" in shown("oom", opened, name)
    assert "Whether anything leaks is not known" in shown("leaks", opened, name)
    assert "severity fine" not in shown("overview", opened, name)
    assert "Peak at least" in shown("overview", opened, name)
    assert "Of what was recorded" in shown("phases", opened, name)
    assert summarize(opened, name).verdict == "incomplete"
