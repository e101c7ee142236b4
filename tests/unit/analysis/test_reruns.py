"""The sign of a what-if that was run dry."""

import pytest

from vramscope.analysis.fit.answer import DryPeak, Effect, Rerun, Reruns


def _reruns(before: tuple[int, int | None], after: tuple[int, int | None]) -> tuple[Reruns, Rerun]:
    plain, changed = (DryPeak(low, high, low, low, low, None, "estimate") for low, high in (before, after))
    row = Rerun("mixed precision", "autocast", changed)
    return Reruns("train.py", "H100", 1 << 30, plain, (row,)), row


@pytest.mark.parametrize(
    ("before", "after", "effect", "saved"),
    [
        ((100, 100), (60, 60), Effect.SAVES, 40),
        ((100, 100), (130, 130), Effect.RAISES, -30),
        ((100, 100), (100, 100), Effect.NOTHING, 0),
        ((100, 120), (90, 110), Effect.UNKNOWN, None),
        ((100, None), (60, 60), Effect.UNKNOWN, None),
        ((100, 100), (60, None), Effect.UNKNOWN, None),
        ((100, 120), (60, 99), Effect.SAVES, 40),
    ],
)
def test_a_sign_is_given_only_where_both_ranges_allow_no_other(before, after, effect, saved):
    found, row = _reruns(before, after)

    assert found.effect(row) is effect
    assert found.saved_bytes(row) == saved


def test_a_strategy_is_answered_by_the_what_if_of_its_name():
    found, _ = _reruns((100, 100), (60, 60))

    assert found.answers("mixed precision (bf16 autocast)")
    assert not found.answers("mixed precisions")
    assert not _reruns((100, None), (60, 60))[0].answers("mixed precision (bf16 autocast)")


def test_bytes_are_saved_between_what_both_runs_reached():
    before = DryPeak(100, 100, 120, 100, 120, None, "checked")
    after = DryPeak(47, 60, 57, 50, 60, None, "estimate")
    row = Rerun("mixed precision", "autocast", after)
    found = Reruns("train.py", "H100", 1 << 30, before, (row,))

    assert found.effect(row) is Effect.SAVES
    assert found.saved_bytes(row) == 50
