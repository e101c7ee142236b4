"""Marks and labels as columns are the same rows, in the same order, as one row at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramscope.capture.log import LabelBatch, joined_by_time, marks_table, table_of_batches

names = st.sampled_from(["", "layers.0", "layers.1", "AdamW"])
# Few times, so that several marks have the same one.
marks = st.tuples(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 3), st.integers(0, 9), st.just(7), st.just(0), names
)
labels = st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([2, 4]), names)


def rows_of(table):
    columns = [column.tolist() for _, column in table.columns()]
    return [(*row[:-1], table.names[row[-1]]) for row in zip(*columns, strict=True)]


@given(st.lists(st.lists(marks, max_size=8), min_size=1, max_size=4))
def test_parts_are_joined_in_the_order_of_time_and_else_in_their_own(parts):
    joined = joined_by_time([marks_table(rows) for rows in parts])

    assert rows_of(joined) == sorted((row for rows in parts for row in rows), key=lambda row: row[2])


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(labels, max_size=5)), min_size=1, max_size=5))
def test_a_batch_of_labels_is_a_row_for_each_of_them(hooks):
    batches = [
        LabelBatch(0, 5, 3, category, *([row[i] for row in rows] for i in range(3)))
        for category, rows in hooks
    ]
    events = [10 * at for at in range(len(batches))]

    table = table_of_batches(batches, events)

    assert rows_of(table) == [
        (event, address, category, element_bytes, name)
        for event, (category, rows) in zip(events, hooks, strict=True)
        for address, element_bytes, name in rows
    ]
    assert table.address.dtype == np.dtype("u8")
