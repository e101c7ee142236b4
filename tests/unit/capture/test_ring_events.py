"""Entries taken in one pass are the entries as the general reader of snapshots converts them."""

from hypothesis import given
from hypothesis import strategies as st

from vramscope.allocator.torch_history import histories
from vramscope.capture.cuda.ring_events import distinct_lists, ring_events
from vramscope.model.stacks import StackBuilder

FRAMES = [{"name": f"f{n}", "filename": "train.py", "line": n} for n in range(5)]

stacks = st.lists(st.sampled_from(FRAMES), max_size=4)
actions = st.sampled_from(("alloc", "free_requested", "free_completed", "segment_alloc", "snapshot"))
entries = st.fixed_dictionaries(
    {
        "action": actions,
        "addr": st.integers(0, 2**64 - 1),
        "size": st.integers(0, 2**40),
        "stream": st.integers(0, 2**64 - 1),
        "time_us": st.just(5),
        "frames": stacks,
    }
)
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
    assert read(taken) == read(ring)
    assert read(taken)[1] == [tuple(frame["line"] for frame in row["frames"]) for row in ring]


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
