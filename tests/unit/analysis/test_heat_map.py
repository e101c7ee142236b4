"""The grid of ranks and steps: every cell is the exact maximum of what it covers."""

import numpy as np
import pytest

from vramscope.analysis.rank_comparison.heat_map import UNKNOWN, heat_map, step_table
from vramscope.analysis.rank_comparison.members import differing_lines
from vramscope.model.device import Process
from vramscope.model.rank_summary import DeviceSummary, LineBytes, RankSummary, StepRows
from vramscope.model.stacks import Frame


def summary(rank, n_ranks, peaks, joined=1, n_devices=1):
    """A rank with a peak per step; *joined* steps share a row."""
    first = np.arange(0, len(peaks), joined)
    most = np.maximum.reduceat(peaks, first) if len(peaks) else peaks
    rows = StepRows.of(
        step=first,
        n_steps=np.minimum(joined, len(peaks) - first),
        start_ns=first,
        end_ns=first + 1,
        allocated=most,
        reserved=most * 2,
    )
    return RankSummary(Process(rank, n_ranks, "host", 1), devices=(DeviceSummary(steps=rows),) * n_devices)


@pytest.mark.parametrize("seed", range(20))
def test_every_cell_is_the_exact_maximum_of_its_ranks_and_steps(seed):
    random = np.random.default_rng(seed)
    n_ranks, n_steps = int(random.integers(1, 90)), int(random.integers(1, 200))
    peaks = random.integers(0, 10**11, (n_ranks, n_steps))
    joined = int(random.choice([1, 1, 4]))
    table = step_table([summary(rank, n_ranks, peaks[rank], joined) for rank in range(n_ranks)])
    ranks = sorted(random.integers(0, n_ranks + 1, 2).tolist())
    steps = sorted(random.integers(0, n_steps + 1, 2).tolist())
    ranks[1], steps[1] = ranks[1] + 1, steps[1] + 1
    most = int(random.integers(1, 40)), int(random.integers(1, 60))
    found = heat_map(table, "allocated", tuple(ranks), tuple(steps), most)

    assert found.most_bytes.shape <= most
    assert found.first_rank[0] <= ranks[0] < ranks[1] <= found.first_rank[-1] + found.ranks_per_row
    for i, rank in enumerate(found.first_rank):
        for j, step in enumerate(found.first_step):
            covered = peaks[rank : rank + found.ranks_per_row, step : step + found.steps_per_column]
            assert found.most_bytes[i, j] == covered.max(initial=UNKNOWN)


def test_a_missing_rank_is_a_row_of_unknown_cells_and_not_of_zeros():
    table = step_table([summary(rank, 4, np.full(3, 7)) for rank in (0, 1, 3)])
    found = heat_map(table, "reserved", (0, 4), (0, 3), (10, 10))

    assert found.most_bytes.tolist() == [[14] * 3, [14] * 3, [UNKNOWN] * 3, [14] * 3]


def test_a_job_without_steps_has_an_empty_grid():
    table = step_table([summary(rank, 2, np.zeros(0, "i8")) for rank in range(2)])

    assert table.end_step == 0
    assert heat_map(table, "allocated", (0, 2), (0, 0), (10, 10)).most_bytes.shape == (2, 0)


def line(name, n_bytes):
    return LineBytes(n_bytes, 1, (Frame(name, f"/net/{name}.py", 3),), "")


def test_two_ranks_differ_in_the_lines_that_differ():
    before = DeviceSummary(lines=(line("a", 100), line("b", 50)), other_bytes=0)
    after = DeviceSummary(lines=(line("a", 100), line("b", 20), line("c", 80)), other_bytes=0)
    found = differing_lines(before, after)

    assert [(each.line.frames[0].function, each.change_bytes) for each in found] == [("c", 80), ("b", -30)]


def test_a_line_that_may_be_among_the_others_of_one_rank_is_not_called_a_difference():
    before = DeviceSummary(lines=(line("a", 100),), other_bytes=40)
    after = DeviceSummary(lines=(line("a", 100), line("c", 30), line("d", 500)), other_bytes=10)
    found = differing_lines(before, after)

    assert [(each.line and each.line.frames[0].function, each.change_bytes) for each in found] == [("d", 500)]
