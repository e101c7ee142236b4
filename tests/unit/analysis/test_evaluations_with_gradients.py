"""Evaluations that run with gradients on, and whose names live through the training that follows."""

from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vramscope
from vramscope.analysis.accumulation import accumulation

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def whole(model, rows, labels):
    """All rows in one forward."""
    scores = model(rows)
    return scores, cross_entropy(scores, labels)


def added_up(model, rows, labels):
    """Three forwards, whose losses are added up."""
    return sum(cross_entropy(model(*each), labels[:1024]) for each in zip(rows.chunk(4)[:3], strict=True))


@contextmanager
def evaluating(model):
    """The model in evaluation mode, as its gradients are on."""
    yield model.eval()
    model.train()


def said_of(path, evaluate, mode, keeps_graph=False):
    """What is said of epochs of some steps, each with an evaluation whose results live until the next."""
    model = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, labels = torch.randn(4096, 16), torch.arange(4096) % 4
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(4):
            for part in range(3):
                at = slice(64 * part, 64 * part + 64)
                loss = cross_entropy(model(rows[at]), labels[at])
                optimizer.zero_grad()
                loss.backward(retain_graph=keeps_graph)
                optimizer.step()
            with mode(model):
                kept = evaluate(model, rows, labels)
    assert kept is not None
    return accumulation(vramscope.load(path).recordings[0])


@pytest.mark.parametrize("evaluate", [whole, added_up])
@pytest.mark.parametrize("mode", [nullcontext, evaluating])
def test_the_graphs_of_an_evaluation_are_named_though_its_results_live_on(tmp_path, evaluate, mode):
    (said,) = said_of(tmp_path, evaluate, mode)

    assert said.kind == "graphs_without_backward"
    assert said.n_bytes >= 2 * MIB
    assert said.function in (evaluate.__name__, "<genexpr>")
    assert "torch.no_grad()" in said.advice


@pytest.mark.parametrize("evaluate", [whole, added_up])
def test_without_gradients_nothing_is_said(tmp_path, evaluate):
    assert said_of(tmp_path, evaluate, lambda _model: torch.no_grad()) == []


def test_graphs_that_a_backward_retains_are_no_evaluations(tmp_path):
    """What such a graph keeps is freed at any time, by no backward, though one used it."""

    def trained(model, rows, labels):
        loss = cross_entropy(model(rows), labels)
        loss.backward(retain_graph=True)
        return loss

    assert said_of(tmp_path, trained, nullcontext, keeps_graph=True) == []


def trained_and(path, evaluate):
    """Six steps of a model; after the third and the last, *evaluate* gets it and an averaged copy."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    copy = deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, labels = torch.randn(64, 16), torch.arange(64) % 4
    with suppress(InterruptedError), vramscope.record(path, device="simulated", quiet=True):
        for step in range(6):
            loss = cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in (2, 5):
                evaluate(model, copy)
        raise InterruptedError  # a run that goes on or breaks off may have been in its next step
    return vramscope.load(path).recordings[0]


def by_copy(_model, copy):
    """Four large forwards of the copy, which is always in evaluation mode."""
    for _ in range(4):
        copy(torch.randn(4096, 16))


def by_model(model, _copy):
    """A large forward of the model itself."""
    with evaluating(model):
        model(torch.randn(4096, 16))


@pytest.mark.parametrize("evaluate", [by_copy, by_model])
def test_an_evaluation_with_gradients_on_is_in_no_step_and_in_none_of_its_peaks(tmp_path, evaluate):
    recording = trained_and(tmp_path / "run", evaluate)

    assert len(recording.steps) == 6
    # 4096 rows of 64 values in 32 bits, which no step of 64 rows has.
    peaks = recording.step_peaks()
    assert peaks.outside.allocated_bytes.max() > MIB > peaks.per_step.allocated_bytes.max()
