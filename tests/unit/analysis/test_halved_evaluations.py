"""How the batch of an evaluation is halved depends on who makes it, and on who reads its results."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import vramscope
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")

STEPS, ROWS, WIDTH = 4, 2048, 256


def wide():
    """A network whose forward needs far more than what it is given and what it returns."""
    return nn.Sequential(
        nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8)
    )


def recorded(path, evaluate, *, is_target=False, loads=False):
    """Record steps of a small model, and what *evaluate* does without gradients: in each, or after one."""
    model, other = nn.Linear(16, 8), wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(16) for _ in range(8 * STEPS)]
    with vramscope.record(path, device="simulated", quiet=True):
        for step, x in enumerate(DataLoader(batches, 8) if loads else torch.stack(batches).chunk(STEPS)):
            if is_target:
                given = torch.randn(ROWS, 16)
                with torch.no_grad():
                    target = evaluate(other, given)
                loss = (model(given) - target).square().mean()
            else:
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 and not is_target:
                with torch.no_grad():
                    evaluate(other, torch.randn(ROWS, 16))
    return vramscope.load(path).recordings[0]


def whole(model, rows):
    return model(rows)


def joined(model, rows):
    return torch.cat([model(half) for half in rows.chunk(2)])


def in_batches(model, rows):
    for batch in DataLoader(list(rows), ROWS):
        model(batch)


def said_of(recording):
    (said,) = [each for each in strategies(recording).advised if each.name.startswith("half the batch")]
    return said


def test_what_a_step_reads_is_joined_on_the_device_and_the_peak_is_between_the_bounds(tmp_path):
    said = said_of(recorded(tmp_path / "whole", whole, is_target=True))
    truth = recorded(tmp_path / "halves", joined, is_target=True).peak().allocated.n_bytes

    assert "on the device" in said.how
    assert said.low_bytes <= truth <= said.high_bytes


@pytest.mark.parametrize(
    ("evaluate", "loads", "words"),
    [
        pytest.param(whole, False, "call the model on half", id="no loader"),
        pytest.param(whole, True, "call the model on half", id="a loader of the training alone"),
        pytest.param(in_batches, False, "a DataLoader of its own", id="a loader of the evaluation"),
    ],
)
def test_an_evaluation_is_halved_by_its_own_loader_if_it_has_one(tmp_path, evaluate, loads, words):
    said = said_of(recorded(tmp_path / "run", evaluate, loads=loads))

    assert words in said.how
