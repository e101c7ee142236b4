"""A data set that is on the device all the time is named; batches that come one by one are not."""

from dataclasses import replace

import pytest
import torch

import vramscope
from vramscope.analysis.held_once import held_once

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def said_of(path, made):
    """What is said of a training on 16 batches of 1 MiB, which *made* returns."""
    net = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for batch in made():
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
    (recording,) = vramscope.load(path).recordings
    # The simulated device counts what is in host memory, so nothing is said of it there.
    on_cuda = replace(recording, source="cuda")
    return [[each for each in held_once(of) if each.kind == "resident_data"] for of in (recording, on_cuda)]


def all_at_once():
    return [torch.randn(4096, 64) for _ in range(16)]


def of_shuffled_rows():
    data = torch.randn(16 * 4096, 64)
    return (data[torch.randperm(len(data))[:4096]] for _ in range(16))


@pytest.mark.parametrize("made", [all_at_once, of_shuffled_rows])
def test_a_data_set_that_stays_on_the_device_is_named(tmp_path, made):
    """16 batches of 4,096 × 64 numbers of four bytes."""
    simulated, (said,) = said_of(tmp_path, made)

    assert simulated == []
    assert said.n_bytes == 16 * MIB
    assert said.file == __file__
    assert "x.to(device, non_blocking=True)" in said.advice


def one_by_one():
    return (torch.randn(4096, 64) for _ in range(16))


def one_for_all_steps():
    return [torch.randn(4096, 64)] * 16


@pytest.mark.parametrize("made", [one_by_one, one_for_all_steps])
def test_batches_one_by_one_and_one_for_all_steps_are_no_data_set(tmp_path, made):
    assert said_of(tmp_path, made) == [[], []]
