"""Verdicts of ``fit`` that are easily wrong, each against the run that decides it."""

import json

import pytest

from vramscope.analysis.fit.answer import FitVerdict
from vramscope.loading import load
from vramscope.model.marks import Phase

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-fit")]

MIB = 1 << 20


def recorded(folder, name):
    (recording,) = load(folder / f"verdict-{name}").recordings
    return recording


def truth(folder, name):
    """torch's own peak of that run; None where it ran out of memory."""
    answer = folder / f"verdict-{name}.json"
    assert answer.exists(), (folder / f"verdict-{name}.stderr").read_text()
    return json.loads(answer.read_text())


def named(strategies, start):
    return next(each for each in strategies if each.name.startswith(start))


def test_sequences_twice_as_long_need_what_was_foreseen(fit_runs):
    fit = recorded(fit_runs, "lengths").batch_fit()

    estimate = fit.at(2 * fit.sizes[-1])

    assert estimate.low_bytes <= truth(fit_runs, "lengths-512") <= estimate.high_bytes
    # With torch 2.13 the range is 10 % wide, with 2.9 and 2.11 16 %, with 2.15 21 %.
    assert estimate.high_bytes < 1.25 * estimate.low_bytes


def test_a_peak_in_evaluation_has_advice_that_holds(fit_runs):
    found = recorded(fit_runs, "evaluated").strategies()

    assert found.phase is Phase.EVAL
    said = named(found.advised, "half the batch in evaluation")
    assert said.low_bytes <= truth(fit_runs, "evaluated-half") <= said.high_bytes < found.peak_bytes
    assert said.peak_bytes == pytest.approx(truth(fit_runs, "evaluated-half"), rel=0.1)


def test_a_run_that_died_in_its_first_forward_fits_nothing_and_is_denied_nothing(fit_runs):
    recording = recorded(fit_runs, "first-forward")
    answer = recording.fit()

    assert truth(fit_runs, "first-forward") is None
    assert truth(fit_runs, "first-forward-unlimited") > 160 * MIB
    assert answer.limit_bytes == pytest.approx(160 * MIB, rel=0.01)
    assert answer.placed[0].verdict is FitVerdict.TOO_SMALL
    assert (answer.smallest_card, answer.smallest_card_chosen) == (None, None)
    assert answer.strategies.without_effect == ()
    assert named(answer.strategies.advised, "activation checkpointing").saved_bytes > 20 * MIB


def test_a_run_that_died_is_not_reported_to_lose_memory_outside_of_torch(fit_runs):
    recording = recorded(fit_runs, "first-forward")

    (failure,) = recording.oom().rooms
    assert failure.own_outside_bytes > 300 * MIB  # the context
    assert failure.own_outside_growth_bytes == 0
    assert recording.waterfall().growth.grown == {}
