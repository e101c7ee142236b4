"""Columns of a growing run may lie in files: with the same values, and without their memory."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vramscope.columns import GrowingColumn
from vramscope.columns.scratch import LEAST_BYTES, Scratch, _File

N_ROWS = LEAST_BYTES // 8


def grown(scratch: Scratch | None, n_turns: int) -> GrowingColumn:
    column = GrowingColumn("i8", scratch)
    for turn in range(n_turns):
        column.extend(np.arange(turn * 10_000, (turn + 1) * 10_000))
    return column


def test_a_column_in_a_file_has_the_same_rows_and_its_views_stay_as_they_were(tmp_path: Path) -> None:
    column = GrowingColumn("i8", Scratch(tmp_path))
    views = []
    for turn in range(6 * N_ROWS // 50_000):
        column.extend(np.arange(turn * 50_000, (turn + 1) * 50_000))
        views.append(column.view())

    for turn, view in enumerate(views):
        assert len(view) == (turn + 1) * 50_000
        assert np.array_equal(view, np.arange(len(view)))
    assert (column.low, column.high) == (0, len(column) - 1)
    # Files without a name: nothing stays behind, however the process ends.
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_takes_less_than_was_written_has_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:50_001], at))
    column = grown(Scratch(tmp_path), 6 * N_ROWS // 10_000)

    assert column._in_file is not None
    assert np.array_equal(column.view(), np.arange(len(column)))


def test_zeros_in_a_file_that_cannot_grow_are_followed_by_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = GrowingColumn("i8", Scratch(tmp_path).growing())
    column.extend(np.zeros(N_ROWS, "i8"))
    assert column._in_file is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(_File, "allocate", full)
    column.extend(np.zeros(N_ROWS, "i8"))
    column.extend(np.arange(1, 100))

    assert column.view().tolist() == [0] * (2 * N_ROWS) + list(range(1, 100))


@pytest.mark.parametrize("directory", [None, Path("/dev/null/no"), Path("/proc")])
def test_without_a_place_for_files_columns_are_in_memory(directory: Path | None) -> None:
    column = grown(Scratch(directory), 3 * N_ROWS // 10_000)

    assert np.array_equal(column.view(), np.arange(len(column)))


@pytest.mark.parametrize("is_in_file", [False, True])
@pytest.mark.parametrize("n_turns", [0, 1, 6 * N_ROWS // 10_000])
def test_rows_that_follow_are_not_kept_and_earlier_results_stay(
    tmp_path: Path, *, is_in_file: bool, n_turns: int
) -> None:
    column = grown(Scratch(tmp_path) if is_in_file else None, n_turns)
    n_kept, results = len(column), []
    for at in range(5):
        results.append((len(column), at, column.followed_by(np.full(300, -at))))
        column.extend(np.arange(len(column), len(column) + 777))

    for n_before, at, result in results:
        assert np.array_equal(result[:n_before], np.arange(n_before))
        assert result[n_before:].tolist() == [-at] * 300
    assert np.array_equal(column.view(), np.arange(n_kept + 5 * 777))


MANY = """
import os, resource, sys
import numpy as np
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_scratch import GrowingColumn, Scratch

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
scratch = Scratch(Path({folder!r}))
columns, rows = [GrowingColumn("i8", scratch) for _ in range(100)], np.arange(20_000)
for column in columns:
    for turn in range(5):
        column.extend(turn * 20_000 + rows)
small = len(os.listdir("/proc/self/fd"))
for _ in range(40):
    columns[-1].extend(len(columns[-1]) + rows)
are_whole = all((each.view() == np.arange(len(each))).all() for each in columns)
print(small, columns[-1]._in_file is not None, are_whole)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_small_columns_leave_descriptors_to_large_ones_and_to_connections(tmp_path: Path) -> None:
    script = MANY.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    n_open, *rest = done.stdout.split()

    assert 2 * 16 <= int(n_open) < 64
    assert rest == ["True", "True"]


GROWS = """
import re, sys
import numpy as np
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_scratch import GrowingColumn, Scratch, grown

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

scratch = Scratch(Path({folder!r})) if {is_in_file} else None
before = resident()
if {is_late}:
    column = GrowingColumn("i8", scratch and scratch.growing())
    column.reserve(30_000_000)
    for first in range(0, 30_000_000, 1_000_000):
        column.extend(np.arange(first, first + 1_000_000))
else:
    column = grown(scratch, 3000)
print(resident() - before, column.view().nbytes, int(column.view()[::100_000].sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_column_in_a_file_leaves_memory_as_it_grows(tmp_path: Path, *, is_late: bool) -> None:
    def run(*, is_in_file: bool) -> list[int]:
        script = GROWS.format(
            tests=str(Path(__file__).parent), folder=str(tmp_path), is_in_file=is_in_file, is_late=is_late
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
        )
        return [int(number) for number in re.findall(r"-?\d+", done.stdout)]

    in_file, n_bytes, total = run(is_in_file=True)
    in_memory, *same = run(is_in_file=False)

    assert same == [n_bytes, total]
    assert n_bytes == 240_000_000
    assert in_memory > n_bytes
    assert in_file < n_bytes / 4
