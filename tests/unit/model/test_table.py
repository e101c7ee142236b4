"""Columns have one length, one dtype, and stay as they were made."""

import sys

import numpy as np
import pytest

from vramscope.errors import MissingExtraError
from vramscope.model.marks import Marks
from vramscope.model.trace import Action, Trace


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
