"""A trace of torch.profiler with the memory of a recording: the levels at the operators that made them."""

import gzip
import json

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.errors import FormatError  # noqa: E402
from vramscope.integrations.torch_profiler import add_memory, trace_handler  # noqa: E402

pytestmark = [pytest.mark.usefixtures("own_tensors_only"), pytest.mark.filterwarnings("default")]
MIB = 1 << 20


@pytest.fixture
def recorder(tmp_path):
    return vramscope.record(tmp_path / "run", device="simulated", quiet=True)


def program(n_blocks):
    """Blocks of 8 MiB, each in a region of its own, and a step for all of them."""
    kept = []
    for number in range(n_blocks):
        with torch.profiler.record_function(f"block {number}"):
            kept.append(torch.ones(2 * MIB))
    return kept


def rows(document, **wanted):
    return [row for row in document["traceEvents"] if all(row.get(k) == v for k, v in wanted.items())]


def test_the_counter_rises_in_the_region_that_allocates(recorder, tmp_path):
    with recorder, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        before = torch.ones(2 * MIB)
        kept = program(4)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    file = add_memory(tmp_path / "trace.json", recorder.load(), tmp_path / "both.json")
    document = json.loads(file.read_text())
    counter = rows(document, ph="C", name="allocated (bytes)")
    original = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    assert before.nbytes == kept[0].nbytes == 8 * MIB
    assert document["traceEvents"][: len(original)] == original
    for number in range(4):
        (region,) = rows(document, ph="X", name=f"block {number}")
        inside = [row["args"]["bytes"] for row in counter if 0 <= row["ts"] - region["ts"] <= region["dur"]]
        assert inside == [(number + 2) * 8 * MIB]
    assert len({row["pid"] for row in counter}) == 1
    assert counter[0]["pid"] not in {row.get("pid") for row in original}


def test_a_handler_writes_the_window_of_the_profiler_while_the_recording_goes_on(recorder, tmp_path):
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=trace_handler(recorder, tmp_path / "both"),
    )
    with recorder, profile as profiler:
        for _ in range(6):
            kept = program(2)
            recorder.step()
            del kept
            profiler.step()
    (file,) = (tmp_path / "both").iterdir()
    document = json.loads(gzip.decompress(file.read_bytes()))
    counter = rows(document, ph="C", name="allocated (bytes)")
    steps = [row["name"] for row in rows(document, ph="X") if row.get("pid") == counter[0]["pid"]]

    assert {"step 2", "step 3"} <= set(steps)
    assert {"step 0", "step 5"}.isdisjoint(steps)
    assert max(row["args"]["bytes"] for row in counter) == 16 * MIB
    assert len(recorder.load().recordings[0].steps) == 6


def test_a_file_that_is_no_trace_is_refused(recorder, tmp_path):
    with recorder:
        torch.ones(4)
    (tmp_path / "trace.json").write_text("[1, 2]")
    with pytest.raises(FormatError, match=r"no trace of torch\.profiler"):
        add_memory(tmp_path / "trace.json", recorder.load())
