"""A part of each step's output that is kept, and with it the whole; and what keeps the whole itself."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.leaks import findings

KEPT = [
    (lambda out: out[:, 0], ".detach().clone()"),
    (lambda out: out.detach()[:, 0], ".clone()"),
    (lambda out: out[:4].detach(), ".clone()"),
]


def found(path, keep, keep_as_well=lambda _: None):
    """The findings on a training of ten steps that keeps what *keep* returns of each output."""
    model, log = nn.Linear(64, 256), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(10):
            out = model(torch.randn(128, 64))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            log.append((keep(out), keep_as_well(out)))
    (recording,) = vramscope.load(path).recordings
    return findings(recording.leaks())


@pytest.mark.parametrize(("keep", "copy"), KEPT)
def test_a_kept_part_is_named_with_the_storage_that_it_keeps_and_a_copy_of_it_ends_that(tmp_path, keep, copy):
    part = keep(torch.zeros(128, 256))
    shape, n_bytes = [*part.shape], 4 * part.numel()

    (leak,) = found(tmp_path / "kept", keep)

    size = f"{n_bytes} B" if n_bytes < 1024 else f"{n_bytes / 1024:.2f} KiB"
    assert f"a view of shape {shape} ({size}) keeps 128 KiB allocated" in leak.claim
    assert leak.advice == f"copy the part, so that the whole is freed: {copy} of what goes into log"
    assert found(tmp_path / "copied", lambda out: keep(out).detach().clone()) == []


@pytest.mark.parametrize(
    "keep_as_well", [lambda out: out, lambda out: out.detach(), lambda out: out.chunk(2)]
)
def test_the_same_part_beside_the_whole_is_no_reason(tmp_path, keep_as_well):
    (leak,) = found(tmp_path / "run", KEPT[0][0], keep_as_well)

    assert leak.cause == "kept_output"
    assert "view" not in leak.claim
    assert "copy the part" not in leak.advice
