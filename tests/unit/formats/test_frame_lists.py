"""Lists of frames differ if one byte of them does."""

import numpy as np
import pytest

from vramscope.formats._fast_snapshot.frame_lists import FrameLists

PAD = bytes(2000)


def contents(frames) -> bytes:
    """References to many frames, in pickle's own opcodes."""
    return b"(" + b"".join(b"j" + frame.to_bytes(4, "little") for frame in frames) + b"e"


def found(lists: FrameLists, pieces: list[bytes]) -> list[int]:
    sizes = np.array([len(piece) for piece in pieces])
    end = np.cumsum(sizes)
    return lists.find(b"".join(pieces) + PAD, end - sizes, end).tolist()


@pytest.mark.parametrize("n_different", [3, 20_000])
def test_equal_lists_are_one_and_others_are_not(n_different):
    random = np.random.default_rng(n_different)
    lists, numbers = FrameLists(), {}
    for _ in range(3):
        chosen = random.integers(0, n_different, 3000).tolist()
        pieces = [contents((7, i, *range(i % 80), i % 3)) for i in chosen]
        for piece, number in zip(pieces, found(lists, pieces), strict=True):
            assert numbers.setdefault(piece, number) == number
    assert len(set(numbers.values())) == len(numbers)


def test_a_list_that_another_begins_with_is_another():
    lists = FrameLists()
    short, long = contents((1, 2)), contents((1, 2, 0))

    assert found(lists, [short, long, b"", short[:-1], long]) == [0, 1, 2, -1, 1]
    assert found(lists, [long, short, short[:-1], b"", short]) == [1, 0, -1, 2, 0]
    assert lists.frames == [[1, 2], [1, 2, 0], []]


def test_lists_of_any_length_keep_their_frames():
    lists = FrameLists()
    pieces = [contents(range(n)) for n in range(2, 90)]

    assert found(lists, pieces) == found(lists, pieces) == list(range(88))
    assert lists.frames == [list(range(n)) for n in range(2, 90)]


def test_what_differs_only_in_its_last_bytes_is_distinguished():
    lists = FrameLists()
    pieces = [contents((*range(40), last << 24)) for last in range(256)]

    assert found(lists, pieces) == list(range(256))
    assert found(lists, pieces[::-1]) == list(range(256))[::-1]


def test_the_number_of_a_list_is_found_by_its_memo_index():
    lists = FrameLists()
    assert lists.numbers_of(np.array([5, 0])).tolist() == [-1, -1]
    lists.number(np.array([3, 5, 9]), np.array([0, 1, 0]))
    lists.number(np.array([], "i8"), np.array([], "i8"))
    lists.number(np.array([20, 30]), np.array([2, 1]))

    memo = np.array([30, 2, 3, 4, 5, 9, 10, 19, 20, 25, 31, 3])
    assert lists.numbers_of(memo).tolist() == [1, -1, 0, -1, 1, 0, -1, -1, 2, -1, -1, 0]
    assert lists.numbers_of(memo[:0]).tolist() == []
