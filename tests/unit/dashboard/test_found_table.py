"""The table of found allocations: what is live, sums of lines, modules and categories, the file of all."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.components.panels import found_table
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.pages import allocations as page

from vramscope.model.trace import Action

SAMPLES = Path(__file__).parents[3] / "sample_traces"


@pytest.fixture(scope="module")
def samples() -> Data:
    return Data(SAMPLES)


@pytest.fixture(scope="module", params=["transformer", "transformer-cuda"])
def sample(samples: Data, request: Any) -> View:
    run = next(run for run, path in samples.runs.paths().items() if path.name == request.param)
    return samples.view(Address(run=run))


def table(data: Data, view: View, text: str, group: str = "") -> list[dict[str, Any]]:
    return page._found(data, view, text, group)[0]


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("group", ["line", "module", "category"])
def test_what_is_live_sums_up_to_what_was_allocated(
    samples: Data, sample: View, share: float, group: str
) -> None:
    at = int(share * len(sample.recording.trace))
    rows = table(samples, sample, f"live:{at}", group)
    whole = sample.recording.timeline()

    assert sum(row["size"] for row in rows) == int(whole.allocated_bytes[at])
    assert sum(row["count"] for row in rows) == len(sample.recording.lifetimes().rows_at(at))


@pytest.mark.parametrize("group", ["line", "module", "category"])
@pytest.mark.parametrize("text", ["", "live:peak", "category:activation"])
def test_from_a_sum_to_exactly_its_blocks(samples: Data, sample: View, text: str, group: str) -> None:
    rows = table(samples, sample, text, group)

    assert rows == sorted(rows, key=lambda row: -row["size"])
    for row in rows[:12]:
        if "term" not in row:
            continue
        found, _ = page._search_of(samples, sample, f"{text} {row['term']}")
        assert (len(found.rows), found.n_bytes) == (row["count"], row["size"]), row


def test_a_live_block_has_its_age_and_a_heading_its_moment(data: Data, view: View) -> None:
    at = 4
    rows, columns, heading = page._found(data, view, f"live:{at}", "")
    times = view.recording.timeline().time_ns
    born = [int(data.ask(view, "lifetimes").alloc_event[row["block"]]) for row in rows]

    assert [column["headerName"] for column in columns][-1] == "Age"
    assert heading.startswith(f"{len(rows)} found live at ")
    assert [row["life"] for row in rows] == [
        {0: "0 ns", 10_000: "10 µs", 20_000: "20 µs", 30_000: "30 µs"}[int(times[at] - times[event + 1])]
        for event in born
    ]


def test_the_file_has_every_allocation_with_exact_numbers(samples: Data, sample: View) -> None:
    found, _ = page._search_of(samples, sample, "")
    rows = list(csv.DictReader(io.StringIO("".join(found_table.as_csv(samples, sample, found)))))
    lives = sample.recording.lifetimes()

    assert len(rows) == len(lives) > found_table.MAX_ROWS
    assert [int(row["block_bytes"]) for row in rows] == lives.block_size.tolist()
    assert [int(row["address"], 16) for row in rows] == lives.address.tolist()


def test_no_name_in_the_file_is_a_formula(tmp_path: Path, make_program: Any) -> None:
    program = make_program(tmp_path / "hostile")
    program.event(Action.ALLOC, 1 << 40, 512, program.stacks.add([("=cmd()", "/home/@me.py", 3)]))
    program.flush()
    data = Data(tmp_path)
    view = data.view(Address(run=next(iter(data.runs.paths()))))
    found, _ = page._search_of(data, view, "")
    row = next(csv.DictReader(io.StringIO("".join(found_table.as_csv(data, view, found)))))

    assert row["function"] == "'=cmd()"
    assert row["file"] == "/home/@me.py"
