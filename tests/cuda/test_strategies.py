"""What mixed precision and checkpointing would save, said from a plain run, is what they save when done."""

import json

import pytest

from vramscope.load import load

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-fit")]

MODELS = ("perceptron", "written_out", "encoder", "convolutions")
HOWS = {"amp": "mixed precision", "checkpointed": "activation checkpointing"}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", MODELS)
def test_a_strategy_lowers_the_peak_by_what_was_said(fit_runs, name, how):
    (recording,) = load(fit_runs / f"{name}-plain").recordings

    found = recording.strategies()

    plain, done = peak(fit_runs, name, "plain"), peak(fit_runs, name, how)
    (said,) = (each for each in found.advised if each.name.startswith(HOWS[how]))
    assert found.peak_bytes == plain
    assert said.saved_bytes == pytest.approx(plain - done, rel=0.1)
    assert said.peak_bytes == plain - said.saved_bytes == max(said.by_phase.values())
    assert said.by_category["activation"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_what_runs_under_autocast_already_is_not_told_to(fit_runs, name):
    (recording,) = load(fit_runs / f"{name}-amp").recordings

    found = recording.strategies()

    assert found.peak_bytes == peak(fit_runs, name, "amp")
    assert not [each for each in found.advised if each.name.startswith("mixed precision")]


def peak(folder, name, how):
    """torch's own counter at the end of that run."""
    answer = folder / f"{name}-{how}.json"
    assert answer.exists(), (folder / f"{name}-{how}.stderr").read_text()
    return json.loads(answer.read_text())
