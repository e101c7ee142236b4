"""The peaks of all ranks in all steps, reduced to a grid of few cells; the maximum of a cell is exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vramscope.model.rank_summary import RankSummary
from vramscope.model.table import Array

Quantity = Literal["allocated", "reserved"]
UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The peaks of every rank in every step, a row each; made once for many grids."""

    rank: Array
    step: Array
    """The first step of the row."""
    n_steps: Array
    """The number of steps that share the row."""
    allocated_bytes: Array
    reserved_bytes: Array
    n_ranks: int
    """The number of ranks of the job, recorded or not."""

    @property
    def end_step(self) -> int:
        """The step after the last one."""
        return int((self.step + self.n_steps).max(initial=0))


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """The grid: a row for neighboring ranks, a column for neighboring steps."""

    first_rank: Array
    """The first rank of each row, shape (rows,)."""
    ranks_per_row: int
    first_step: Array
    """The first step of each column, shape (columns,)."""
    steps_per_column: int
    most_bytes: Array
    """The maximum of each cell in bytes, shape (rows, columns); −1 where nothing is known."""


def step_table(summaries: Sequence[RankSummary]) -> StepTable:
    """Collect the peaks per step of all ranks.

    There are no rows where no rank knows steps.
    """
    rows = [
        (summary.process.rank, device.steps)
        for summary in summaries
        for device in summary.devices
        if len(device.steps)
    ]
    known = max((max(each.process.world_size, each.process.rank + 1) for each in summaries), default=0)

    def joined(name: str) -> Array:
        return np.concatenate([np.zeros(0, "i8"), *(getattr(steps, name) for _, steps in rows)])

    return StepTable(
        rank=np.repeat([rank for rank, _ in rows], [len(steps) for _, steps in rows]).astype("i8"),
        step=joined("step"),
        n_steps=joined("n_steps"),
        allocated_bytes=joined("allocated"),
        reserved_bytes=joined("reserved"),
        n_ranks=known,
    )


def heat_map(
    table: StepTable,
    quantity: Quantity,
    ranks: tuple[int, int],
    steps: tuple[int, int],
    most: tuple[int, int],
) -> HeatMap:
    """Reduce the peaks within a window to a grid.

    *ranks* and *steps* are first and end; cells begin at multiples of their size, so the grid may reach
    beyond. *most* are the most rows and columns. A rank with several devices counts as its fullest one. Where
    a summary joined neighboring steps, a column is at least as many steps.
    """
    per_row = _size(ranks, most[0], 1)
    joined = int(table.n_steps.max(initial=1))
    per_column = _size(steps, most[1], joined)
    row, column = ranks[0] // per_row, steps[0] // per_column
    n_rows, n_columns = -(-ranks[1] // per_row) - row, -(-steps[1] // per_column) - column
    grid = np.full((max(n_rows, 0), max(n_columns, 0)), UNKNOWN, "i8")
    values = table.allocated_bytes if quantity == "allocated" else table.reserved_bytes
    of_row = table.rank // per_row - row
    # The steps of a row may begin in one column and end in the next.
    for of_column in [table.step] if joined == 1 else [table.step, table.step + table.n_steps - 1]:
        at = of_column // per_column - column
        inside = (of_row >= 0) & (of_row < n_rows) & (at >= 0) & (at < n_columns)
        np.maximum.at(grid, (of_row[inside], at[inside]), values[inside])
    return HeatMap(
        first_rank=(row + np.arange(len(grid))) * per_row,
        ranks_per_row=per_row,
        first_step=(column + np.arange(grid.shape[1])) * per_column,
        steps_per_column=per_column,
        most_bytes=grid,
    )


def _size(window: tuple[int, int], most: int, unit: int) -> int:
    """The smallest multiple of *unit* as the size of a cell for which *most* cells suffice."""
    start, end = window
    size = max(-(-(end - start) // most), 1)
    size = -(-size // unit) * unit
    while -(-end // size) - start // size > most:
        size += unit
    return size
