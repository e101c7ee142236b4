"""A part of each step's output that is kept, and with it the whole; and what keeps the whole itself.

The program runs in a process of its own: in one with thousands of modules, the search for holders ends before
it has seen everything, and says nothing of parts.
"""

import subprocess
import sys

import pytest
import torch

import vramscope
from vramscope.analysis.leaks import findings

KEPT = [
    ("out[:, 0]", ".detach().clone()"),
    ("out.detach()[:, 0]", ".clone()"),
    ("out[:4].detach()", ".clone()"),
]
PROGRAM = """
import sys

import torch
from torch import nn

import vramscope

model, log = nn.Linear(64, 256), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vramscope.record(sys.argv[1], device="simulated", quiet=True):
    for _ in range(10):
        out = model(torch.randn(128, 64))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        log.append((KEEP, BESIDE))
"""


def found(path, keep, beside="None"):
    """The findings on a training of ten steps that keeps a part of each output, and what is *beside* it."""
    program = path.with_suffix(".py")
    program.write_text(PROGRAM.replace("KEEP", keep).replace("BESIDE", beside))
    subprocess.run([sys.executable, program, path], check=True, timeout=120)
    (recording,) = vramscope.load(path).recordings
    return findings(recording.leaks())


@pytest.mark.parametrize(("keep", "copy"), KEPT)
def test_a_kept_part_is_named_with_the_storage_that_it_keeps_and_a_copy_of_it_ends_that(tmp_path, keep, copy):
    part = eval(keep, {"out": torch.zeros(128, 256)})
    shape, n_bytes = [*part.shape], 4 * part.numel()

    (leak,) = found(tmp_path / "kept", keep)

    size = f"{n_bytes} B" if n_bytes < 1024 else f"{n_bytes / 1024:.2f} KiB"
    assert f"a view of shape {shape} ({size}) keeps 128 KiB allocated" in leak.claim
    assert leak.advice == f"copy the part, so that the whole is freed: {copy} of what goes into log"
    assert found(tmp_path / "copied", f"{keep}.detach().clone()") == []


@pytest.mark.parametrize("beside", ["out", "out.detach()", "out.chunk(2)"])
def test_the_same_part_beside_the_whole_is_no_reason(tmp_path, beside):
    (leak,) = found(tmp_path / "run", KEPT[0][0], beside)

    assert leak.cause == "kept_output"
    assert "view" not in leak.claim
    assert "copy the part" not in leak.advice
