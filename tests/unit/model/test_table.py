"""Columns have one length, one dtype, and stay as they were made."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vramscope
from vramscope.errors import MissingExtraError
from vramscope.model.marks import Marks
from vramscope.model.rank_summary import DeviceSummary, PeakPlace, RankSummary, StepRows
from vramscope.model.table import EqualByValue, first_greatest
from vramscope.model.trace import Action, Trace

RUN = Path(__file__).parents[3] / "sample_traces" / "gan-retain-graph"


@dataclass(frozen=True, slots=True)
class Point(EqualByValue):
    at: Any


def test_missing_columns_are_zeros_of_the_declared_dtype():
    trace = Trace.of(action=[Action.ALLOC, Action.OOM], size=[10, 20])

    assert trace.stream.tolist() == [0, 0]
    assert trace.address.dtype == np.uint64


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        Trace.of(action=[1, 2], size=[1])


def test_a_wrong_dtype_is_refused():
    columns = dict(Trace.of(action=[1]).columns())

    with pytest.raises(TypeError, match="size: float64"):
        Trace(**(columns | {"size": np.array([1.0])}))


def test_columns_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        Trace.of(action=[1]).action[0] = 2


def test_building_a_table_leaves_the_callers_array_writable():
    mine = np.array([1, 2], dtype="i8")
    Trace.of(size=mine)

    mine[0] = 5

    assert mine[0] == 5


def test_rows_keep_the_names_that_ride_along():
    marks = Marks.of(kind=[1, 2, 3], name=[0, 1, 0], names=("", "Adam"))

    assert (marks.rows(slice(1, 3)).kind.tolist(), marks.rows([1]).names) == ([2, 3], ("", "Adam"))


def test_pandas_gets_the_same_rows():
    frame = Trace.of(action=[1, 2], size=[3, 4]).to_pandas()

    assert frame["size"].tolist() == [3, 4]


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingExtraError, match=r'pip install "vramscope\[pandas\]"'):
        Trace.of(action=[1]).to_pandas()


def test_at_a_prompt_a_table_is_one_line():
    trace = Trace.of(action=np.zeros(5000))

    assert repr(trace).startswith("Trace(5,000 rows of action, time_ns, ")
    assert len(repr(trace)) < 200


def test_tables_are_equal_if_all_their_values_are():
    rows = {"action": [Action.ALLOC, Action.OOM], "size": [10, 20]}

    assert Trace.of(**rows) == Trace.of(**rows)
    assert Trace.of(**rows) != Trace.of(**rows | {"size": [10, 21]})
    assert Trace.of(**rows) != Trace.of(**rows).rows(slice(1))
    assert Marks.of(name=[0], names=("one",)) != Marks.of(name=[0], names=("two",))
    assert Trace.of() != Marks.of()


def test_results_with_tables_and_arrays_inside_are_equal_if_all_their_values_are():
    def summary(allocated):
        steps = StepRows.of(step=[0, 1], allocated=allocated)
        return RankSummary(devices=(DeviceSummary(peak={"allocated": PeakPlace(9, 1, 0)}, steps=steps),))

    assert summary([5, 9]) == summary([5, 9])
    assert summary([5, 9]) != summary([6, 9])


def test_one_recording_read_twice_gives_equal_answers():
    first, second = (vramscope.load(RUN).recordings[0] for _ in range(2))

    assert first == second
    for question in ("categories", "leaks", "timeline", "peak", "lifetimes"):
        assert getattr(first, question)() == getattr(second, question)()


def test_values_that_are_not_a_number_are_equal_to_each_other():
    one, other = (Point(np.array([1.0, np.nan])) for _ in range(2))

    assert one == other
    assert one != Point(np.array([1.0, 2.0]))
    assert one != Point(np.array([1.0, np.nan], "f4"))


@pytest.mark.parametrize("n", [1, 2, 1000, 70_000, 200_000])
@pytest.mark.parametrize("n_values", [1, 3, 10**9])
def test_the_first_greatest_row_is_that_of_argmax(n: int, n_values: int) -> None:
    column = np.random.default_rng(n).integers(-n_values, n_values, n)
    column.setflags(write=False)

    assert first_greatest(column) == column.argmax()
