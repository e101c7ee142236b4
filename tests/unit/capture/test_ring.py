"""New entries of torch's ring are distinguished from old ones, however much a program repeats itself."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from vramscope.capture.cuda.ring import TAIL, first_new, lost
from vramscope.capture.cuda.ring.counts import COUNTED, EntryCounts, counted

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_map", "snapshot")

# Few addresses and sizes, so that stretches repeat.
entries = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2), st.just(512))
histories = st.lists(entries, max_size=120)
loops = st.tuples(st.lists(entries, min_size=1, max_size=6), st.integers(1, 30)).map(
    lambda loop: loop[0] * loop[1]
)


def n_counted(rows):
    return sum(action in COUNTED for action, _, _ in rows)


def find(ring, tail, made):
    return first_new([row[0] for row in ring], ring.__getitem__, tail, made)


@given(st.one_of(histories, loops), st.integers(0, 150), st.integers(1, 150))
@example([("alloc", 0, 512)] * 50, 40, 20)
def test_with_exact_counts_what_is_new_is_found_or_reported_lost(history, read, size):
    read = min(read, len(history))
    old, new = history[:read], history[read:]
    ring = history[-size:]
    n_new = n_counted(new)

    start = find(ring, old[-TAIL:], (n_new, n_new))

    if start is None:
        assert len(new) > len(ring) or not old
    else:
        # Uncounted entries at the very edge may count as old or new: they are the same entries then.
        assert n_counted(ring[start:]) == n_new


@given(histories, histories)
def test_entries_made_while_it_was_read_widen_the_bounds_only(old, new):
    ring = old + new
    tail = old[-TAIL:]

    start = find(ring, tail, (0, n_counted(new)))

    assert start is not None
    assert n_counted(ring[start:]) <= n_counted(new)


def test_a_loop_that_repeats_itself_is_placed_by_count():
    loop = [("alloc", 1, 512), ("free_requested", 1, 512), ("free_completed", 1, 512)]
    ring = loop * 40

    assert find(ring, (loop * 20)[-TAIL:], (30, 30)) == 90
    assert find(ring, (loop * 20)[-TAIL:], (60, 60)) == 60


def test_an_overwritten_ring_holds_nothing_that_was_read_before():
    ring = [("alloc", n, 512) for n in range(100, 150)]
    tail = [("alloc", n, 512) for n in range(50)][-TAIL:]

    assert find(ring, tail, (100, 100)) is None


def test_a_ring_just_begun_is_new_as_a_whole():
    ring = [("alloc", n, 512) for n in range(7)]

    assert find(ring, [], (7, 7)) == 0
    assert find(ring, [], (9, 9)) is None


@given(st.lists(st.sampled_from(sorted(COUNTED))), st.lists(st.sampled_from(sorted(COUNTED))))
def test_a_gap_is_sized_by_what_was_made_and_not_seen(gone, seen):
    made = counted(Counter(gone + seen))

    assert lost(made, counted(Counter(seen))) == len(gone)


def test_statistics_that_were_set_back_tell_nothing():
    now, before = EntryCounts(1, 1, 1, 1, 1, 0), EntryCounts(2, 1, 1, 1, 1, 0)

    assert now.since(before) is None
    assert lost(None, now) == 0
