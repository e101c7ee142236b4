"""The search for the largest size that fits, against needs that are known by a formula."""

from collections.abc import Callable

import pytest

from vramscope.commands._predict_page import largest_words
from vramscope.prediction.largest import LargestSize, SizeTrial, search_largest
from vramscope.prediction.sizes import Size

MIB = 1 << 20


def _search(need: Callable[[int], int], room: int, start: int) -> LargestSize:
    def trial(size: int) -> SizeTrial:
        return SizeTrial(size, need(size) <= room, min(need(size), room))

    return search_largest(start, room, trial, lambda _: None)


@pytest.mark.parametrize("start", [1, 3, 8, 64, 500, 5000])
@pytest.mark.parametrize("most", [1, 2, 7, 8, 100, 999])
def test_the_largest_size_is_found_from_any_start(start: int, most: int):
    found = _search(lambda size: 300 * MIB + size * MIB, (300 + most) * MIB, start)

    assert found.fitting == most
    assert found.too_large == most + 1
    assert found.is_exact


def test_a_need_that_grows_with_the_square_is_followed():
    found = _search(lambda size: size * size, 10_000 * 10_000, 100)

    assert found.fitting == 10_000


def test_a_linear_need_takes_few_dry_runs():
    found = _search(lambda size: 500 * MIB + size * 3 * MIB, 500 * MIB + 777 * 3 * MIB, 32)

    assert found.fitting == 777
    assert len(found.trials) <= 6


def test_no_size_is_answered_where_not_even_one_fits():
    found = _search(lambda size: 100 + size, 50, 16)

    assert found.fitting is None
    assert found.too_large == 1


def test_sizes_of_which_nothing_is_known_are_neither_called_fitting_nor_too_large():
    def trial(size: int) -> SizeTrial:
        return SizeTrial(size, True if size <= 10 else False if size > 20 else None, size)

    found = search_largest(4, 15, trial, lambda _: None)

    assert found.fitting == 10
    assert found.too_large is None or found.too_large > 20
    assert not found.is_exact


def test_a_need_that_does_not_grow_is_reported_as_a_contradiction():
    found = LargestSize((SizeTrial(8, False, 5), SizeTrial(16, True, 3), SizeTrial(4, True, 2)))

    assert [each.size for each in found.contradictions] == [16]
    assert found.fitting == 4


def test_a_size_without_effect_ends_the_search_without_a_limit():
    found = _search(lambda _: 10, 100, 1)

    assert found.too_large is None
    assert not found.is_exact


def test_a_run_that_fails_ends_the_search_with_its_reason():
    found = search_largest(8, 100, lambda size: SizeTrial(size, None, 0, "no such file"), lambda _: None)

    assert found.problem == "no such file"
    assert len(found.trials) == 1


def test_the_caller_knows_each_run_when_it_is_over():
    seen: list[int] = []

    search_largest(
        1, 10, lambda size: SizeTrial(size, size <= 4, size), lambda found: seen.append(len(found.trials))
    )

    assert seen == list(range(1, len(seen) + 1))


def test_an_answer_that_stops_at_a_doubtful_size_names_it():
    trials = SizeTrial(4, True, 40), SizeTrial(8, None, 80), SizeTrial(7, True, 70)
    words = largest_words(Size("batch", 4, ()), LargestSize(trials), "the T4")
    endless = largest_words(Size("batch", 4, ()), LargestSize(trials[:1]), "the T4")

    assert LargestSize(trials).first_open == 8
    assert words == "batch 7 fits on the T4; for 8 that is not certain"
    assert endless == "batch 4 fits on the T4, and no limit was found; the need hardly grows with it"
