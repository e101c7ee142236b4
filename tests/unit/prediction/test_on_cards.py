"""Verdicts for cards from a dry run for one of them."""

from vramscope.model.prediction import Need, OnCard
from vramscope.prediction.cards import CardRoom, on_cards

GIB = 1 << 30
H100 = CardRoom("H100", 80 * GIB, GIB // 2, (9, 0))
A100 = CardRoom("A100", 40 * GIB, GIB // 2, (8, 0))
T4 = CardRoom("T4", 15 * GIB, GIB // 2, (7, 5))


def _by_name(need: Need, fits: bool | None) -> dict[str, OnCard]:
    return {each.card: each for each in on_cards(need, H100, fits, [H100, A100, T4])}


def test_the_card_it_was_run_for_has_exact_room_to_spare():
    own = _by_name(Need(19 * GIB, 20 * GIB, 0), True)["H100"]

    assert own.is_own_run
    assert own.fits is True
    assert own.headroom_bytes == (80 * GIB - GIB // 2 - 20 * GIB,) * 2


def test_other_cards_are_decided_only_where_they_are_clearly_larger_or_smaller():
    found = _by_name(Need(30 * GIB, 31 * GIB, 0), True)

    assert found["A100"].fits is True
    assert found["T4"].fits is False
    assert not found["A100"].is_own_run


def test_a_card_close_to_the_need_is_not_decided():
    found = _by_name(Need(39 * GIB, int(39.4 * GIB), 0), True)

    assert found["A100"].fits is None
    low, high = found["A100"].headroom_bytes or (0, 0)
    assert low is not None
    assert low < 0 < high


def test_older_cards_choose_other_kernels_and_have_a_wider_interval():
    need = Need(13 * GIB, 14 * GIB, 0)

    found = {
        each.card: each.fits for each in on_cards(need, H100, True, [T4, CardRoom("L4", 15 * GIB, 0, (8, 9))])
    }

    assert found == {"T4": None, "L4": True}


def test_a_lower_bound_rules_cards_out_and_never_in():
    found = _by_name(Need(30 * GIB, 30 * GIB, None), None)

    assert found["T4"].fits is False
    assert found["A100"].fits is None
    assert found["A100"].headroom_bytes is not None
    assert found["A100"].headroom_bytes[0] is None


def test_where_memory_ran_out_nothing_larger_is_decided():
    found = _by_name(Need(79 * GIB, 79 * GIB, 0, is_whole=False), False)

    assert found["H100"].fits is False
    assert found["H100"].headroom_bytes is None
    assert found["A100"].fits is False


def test_between_the_least_and_the_most_that_drivers_leave_of_a_card_the_verdict_is_open():
    card = CardRoom("RTX 3070", 75 * GIB // 10, GIB // 2, (8, 6), most_bytes=8 * GIB)
    needs = [Need(GIB * tenths // 10, GIB * tenths // 10, 0) for tenths in (50, 72, 95)]

    verdicts = [on_cards(need, H100, True, [card])[0].fits for need in needs]

    assert verdicts == [True, None, False]
