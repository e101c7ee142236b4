"""Entries taken in one pass are the entries as the general reader of snapshots converts them, without the
stacks of frees, which the recorder leaves out."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.allocator.torch_history import histories
from vramscope.capture.cuda.ring.events import distinct_lists, n_of_actions, ring_events
from vramscope.model.stacks import StackBuilder

FRAMES = [{"name": f"f{n}", "filename": "train.py", "line": n} for n in range(5)]

stacks = st.lists(st.sampled_from(FRAMES), max_size=4)
actions = st.sampled_from(("alloc", "free_requested", "free_completed", "segment_alloc", "snapshot"))
# In torch's order: Hypothesis would shuffle the keys of a dictionary.
KEYS = ("action", "addr", "size", "stream", "time_us", "frames")
entries = st.tuples(
    actions, st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**64 - 1), st.just(5), stacks
).map(lambda values: dict(zip(KEYS, values, strict=True)))
pools = st.sampled_from([(0, 0), (0, 7), (1, 2)])


def read(trace):
    builder = StackBuilder()
    found, _ = histories({"segments": [], "device_traces": [trace]}, builder, torch="2.13")
    (history,) = found
    table = builder.build()
    trace = history.trace
    lines = [tuple(frame.line for frame in table.frames(int(i))) for i in trace.stack_id]
    columns = {name: column.tolist() for name, column in trace.columns() if name != "stack_id"}
    return columns, lines, history.pools


@given(
    st.lists(entries, min_size=1, max_size=30),
    st.one_of(st.none(), st.lists(pools, min_size=30, max_size=30)),
)
def test_one_pass_finds_what_the_general_reader_finds(ring, pool_ids):
    if pool_ids is not None:
        ring = [row | {"pool_id": pool} for row, pool in zip(ring, pool_ids, strict=False)]

    taken = ring_events(ring)

    assert taken is not None
    columns, lines, pools_read = read(taken)
    assert (columns, pools_read) == read(ring)[::2]
    assert lines == [
        () if row["action"].startswith("free") else tuple(frame["line"] for frame in row["frames"])
        for row in ring
    ]


@given(st.lists(entries, min_size=1, max_size=30))
def test_events_count_their_actions(ring):
    events = ring_events(ring)

    assert events is not None
    assert n_of_actions(events) == Counter(row["action"] for row in ring)


@settings(max_examples=40)
@given(st.lists(entries, min_size=2, max_size=5), st.data())
def test_an_entry_with_other_keys_shifts_no_column(ring, data):
    changed = [
        {key: value for key, value in row.items() if key not in data.draw(st.sets(st.just(key), max_size=1))}
        | data.draw(st.sampled_from([{}, {"forward_frames": ["line"]}]))
        for row, key in ((row, data.draw(st.sampled_from(("addr", "stream", "frames")))) for row in ring)
    ]

    taken = ring_events(changed)

    is_uniform = all(row.keys() == ring[0].keys() for row in changed)
    assert (taken is not None) == is_uniform


@given(st.lists(stacks, max_size=40), st.lists(st.integers(0, 39), max_size=80))
def test_lists_get_the_same_number_exactly_if_their_frames_are_the_same(kinds, order):
    lists = [list(kinds[i]) if i % 2 else kinds[i] for i in order if i < len(kinds)]

    found, index = distinct_lists(lists)

    assert [found[i] for i in index] == lists
    assert len(found) == len({tuple(map(id, frames)) for frames in lists})


def test_a_ring_with_an_out_of_memory_error_is_left_to_the_general_reader():
    row = {"action": "alloc", "addr": 512, "size": 1, "stream": 0, "time_us": 5, "frames": []}
    failed = {key: value for key, value in row.items() if key != "addr"} | {"action": "oom", "device_free": 3}

    assert ring_events([row, failed]) is None
