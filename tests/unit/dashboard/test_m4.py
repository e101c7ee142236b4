"""M4 sends few points, and never loses an extreme."""

from itertools import pairwise

import numpy as np
import pytest
from vramscope.dashboard.figures.drawing.m4 import (
    even_edges,
    m4,
    time_edges,
)


def levels(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-50, 51, n).cumsum() + 1000


def test_the_extremes_of_sixty_random_windows_are_kept_exactly() -> None:
    values, position = levels(200_000), np.sort(np.random.default_rng(1).random(200_000))
    rng = np.random.default_rng(2)
    for _ in range(60):
        start, stop = np.sort(rng.choice(len(values), 2, replace=False))
        chosen = m4([values], time_edges(position, start, stop, 600))

        assert values[chosen].max() == values[start:stop].max()
        assert values[chosen].min() == values[start:stop].min()


def test_every_column_keeps_its_own_extremes_and_its_ends() -> None:
    values, edges = levels(10_000), even_edges(0, 10_000, 37)
    chosen = set(m4([values], edges).tolist())
    for low, high in pairwise(edges.tolist()):
        kept = [i for i in chosen if low <= i < high]

        assert {low, high - 1} <= set(kept)
        assert values[kept].max() == values[low:high].max()
        assert values[kept].min() == values[low:high].min()


def test_at_most_four_points_a_column_are_sent() -> None:
    assert len(m4([levels(1_000_000)], even_edges(0, 1_000_000, 600))) <= 2400


@pytest.mark.parametrize("n", [0, 1, 2, 599, 600])
def test_few_samples_are_all_sent(n: int) -> None:
    position = np.arange(n, dtype="f8")

    assert m4([levels(n)], time_edges(position, 0, n, 600)).tolist() == list(range(n))


def test_columns_of_equal_width_follow_a_clock_that_bursts() -> None:
    position = np.concatenate([np.linspace(0, 0.001, 10_000), [5.0], np.linspace(9.999, 10, 10_000)])
    edges = time_edges(position, 0, len(position), 100)

    # The lonely event in the middle has a column of its own.
    assert {10_000, 10_001} <= set(edges.tolist())


def test_many_events_of_one_moment_lie_in_one_column() -> None:
    assert time_edges(np.zeros(5000), 0, 5000, 100).tolist() == [0, 5000]
