"""What comes after the last forward of an evaluation, told apart from what comes between its forwards."""

import copy

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.findings import with_modules
from vramscope.model.marks import Phase

pytestmark = pytest.mark.usefixtures("own_tensors_only")


def recorded(path, evaluate):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(8, 64)).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                evaluate(model, kept)
    (found,) = vramscope.load(path).recordings
    return found


def best_weights(model, kept):
    float(model(torch.randn(8, 64)).mean())
    kept.append(copy.deepcopy([model.state_dict()] * 4 + [torch.zeros(4096, 64)]))


def large_between(model, kept):  # noqa: ARG001
    float(model(torch.randn(8, 64)).mean())
    float(torch.zeros(4096, 64).mean())
    float(model(torch.randn(8, 64)).mean())


def large_within(model, kept):  # noqa: ARG001
    float(model(torch.randn(8192, 64)).mean())


@pytest.mark.parametrize(
    ("evaluate", "words"),
    [(best_weights, "the time after eval"), (large_between, "eval"), (large_within, "eval")],
)
def test_a_copy_after_an_evaluation_is_not_said_to_be_in_it(tmp_path, evaluate, words):
    assert recorded(tmp_path, evaluate).peak().allocated.phase_words == words


def test_results_that_an_evaluation_keeps_are_in_no_module(tmp_path):
    """One line calls the model and joins its results outside of it."""

    def joined(model, kept):
        results = torch.zeros(0, 64)
        for _ in range(8):
            results = torch.cat([results, model(torch.randn(16384, 64))])
        kept.clear()

    recording = recorded(tmp_path, joined)
    (found,) = (each for each in recording.evaluation_peak() if each.kind == "evaluation_keeps")

    assert [each.module for each in with_modules(recording, [found])] == [None]


def test_smaller_batches_are_no_advice_where_a_model_that_goes_needs_most(tmp_path):
    """A large encoder makes its features before training, and is gone then; its batches are small."""
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        encoder = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
        with torch.no_grad():
            features = [encoder(torch.randn(8, 1024)) for _ in range(4)]
        del encoder
        head = nn.Linear(1024, 10)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for each in features:
            head(each).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings

    assert recording.peak().allocated.phase == Phase.EVAL
    assert recording.evaluation_peak() == []
