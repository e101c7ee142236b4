"""What several questions need is computed once while they are asked together, and only then."""

from collections.abc import Callable

import pytest

from vramscope.analysis.shared_results import memoized, shared_results
from vramscope.model.recording import Recording


@pytest.fixture
def asked() -> list[Recording]:
    return []


@pytest.fixture
def count(asked: list[Recording]) -> Callable[[Recording], object]:
    @memoized
    def count(recording: Recording) -> object:
        asked.append(recording)
        return object()

    return count


def test_within_it_is_computed_once_for_each_recording(count, asked):
    one, other = Recording(), Recording()
    with shared_results():
        assert count(one) is count(one)
        assert count(other) is not count(one)

    assert len(asked) == 2


def test_outside_nothing_is_kept(count, asked):
    recording = Recording()
    with shared_results():
        count(recording)
    count(recording)
    count(recording)

    assert len(asked) == 3


def test_a_recording_that_is_let_go_is_not_taken_for_the_next(count, asked):
    with shared_results():
        for _ in range(100):
            count(Recording())

    assert len(asked) == 100
