"""Every stack once; what goes in comes out, in the same order."""

from hypothesis import given
from hypothesis import strategies as st

from vramscope.model.stacks import Frame, StackBuilder, stacks_of

FRAME = st.builds(Frame, st.sampled_from("fgh"), st.sampled_from(["a.py", "b.py"]), st.integers(0, 3))
STACKS = st.lists(st.lists(FRAME, max_size=6), max_size=20)


@given(STACKS)
def test_stacks_come_back_as_they_went_in(stacks):
    builder = StackBuilder()
    ids = [builder.add(frames) for frames in stacks]

    built = builder.build()

    assert [built.frames(i) for i in ids] == [tuple(frames) for frames in stacks]


@given(STACKS)
def test_equal_stacks_share_their_id_and_parents_come_first(stacks):
    builder = StackBuilder()
    ids = [builder.add(frames) for frames in stacks]

    built = builder.build()

    assert len(set(ids)) == len({tuple(frames) for frames in stacks})
    assert all(built.parent[i] < i for i in range(1, len(built)))


@given(STACKS)
def test_rows_written_in_pieces_rebuild_the_same_tree(stacks):
    builder, copy = StackBuilder(), StackBuilder()
    ids = []
    for frames in stacks:
        start = len(builder)
        ids.append(builder.add(frames))
        for row in builder.rows(start):
            copy.push(*row)

    assert [copy.build().frames(i) for i in ids] == [builder.build().frames(i) for i in ids]


def test_the_innermost_frame_comes_first():
    stacks = stacks_of([("inner", "a.py", 2), ("outer", "a.py", 9)])

    assert stacks.frame(2) == Frame("inner", "a.py", 2)
    assert [frame.function for frame in stacks.frames(2)] == ["inner", "outer"]
