"""What a strategy would save, estimated from a plain run, is what it saves in a genuine one."""

import json
from functools import cache

import pytest
from standin_fixtures import HAS_WORKSPACE_PER_PRODUCT

from vramscope.loading import load

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-fit")]

SAID = {
    "checkpointed": "activation checkpointing",
    "micro": "2 micro-batches",
    "eight": "optimizer state in 8 bits",
    "momentum": "optimizer with one moment",
    "fused": "fused optimizer",
    "loop": "optimizer without foreach",
}
ACTIVATIONS = {
    "checkpointed": ("perceptron", "written_out", "encoder", "convolutions", "unet", "gpt"),
    "micro": (
        "perceptron", "written_out", "encoder", "convolutions",
        "resnet", "unet", "translator", "gpt", "recurrent",
    ),
}  # fmt: skip
OPTIMIZER = {
    "eight": ("resnet", "unet", "gpt", "translator-few", "recurrent-few", "recommender-few"),
    "momentum": ("resnet", "gpt", "translator-few", "recurrent-few", "recommender-few"),
    "fused": ("perceptron-few", "translator-few", "recurrent-few", "recommender-few"),
    "loop": ("perceptron-rms",),
}
PAIRS = [(name, how) for table in (ACTIVATIONS, OPTIMIZER) for how, names in table.items() for name in names]


@pytest.mark.parametrize(("name", "how"), PAIRS)
def test_a_strategy_lowers_the_peak_by_what_was_predicted(fit_runs, name, how):
    found = strategies_of(fit_runs / f"{name}-plain")

    plain, done = peak(fit_runs, name, "plain"), peak(fit_runs, name, how)
    if done >= plain:
        # A product's workspace lies on top of backward then, above the optimizer's peak.
        assert HAS_WORKSPACE_PER_PRODUCT
        assert how in {"fused", "loop"}
        assert SAID[how] not in " ".join(each.name for each in found.advised)
        return
    (said,) = (each for each in found.advised if each.name.startswith(SAID[how]))
    assert found.peak_bytes == plain
    assert said.saved_bytes == pytest.approx(plain - done, rel=0.1)
    assert said.peak_bytes == plain - said.saved_bytes == max(said.by_phase.values())
    assert said.low_bytes <= done <= said.high_bytes <= plain
    if how in ACTIVATIONS:
        assert said.by_category["activation"] > 0


@pytest.mark.parametrize(
    ("name", "how"),
    [("resnet", "checkpointed")],
)
def test_what_no_bound_decides_is_not_advised(fit_runs, name, how):
    found = strategies_of(fit_runs / f"{name}-plain")

    (said,) = (each for each in found.undecided if each.name.startswith(SAID[how]))
    assert said.low_bytes <= peak(fit_runs, name, how) <= said.high_bytes
    assert not [each for each in found.advised if each.name.startswith(SAID[how])]


@cache
def strategies_of(path):
    (recording,) = load(path).recordings
    return recording.strategies()


def names(found):
    return [each.name for each in found.advised] + list(found.without_effect)


def peak(folder, name, how):
    """torch's own counter at the end of that run."""
    answer = folder / f"{name}-{how}.json"
    assert answer.exists(), (folder / f"{name}-runs.stderr").read_text()
    return json.loads(answer.read_text())
