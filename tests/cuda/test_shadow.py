"""A copy of the weights that every step updates: the advised edit runs, and takes the copy off the card."""

import pytest

from vramscope.loading import load

pytestmark = pytest.mark.standin

PROGRAM = """
import torch, vramscope
from torch import nn
torch.backends.cudnn.enabled = False
with vramscope.record("run", quiet=True):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(768, 768), nn.GELU()) for _ in range(12)]).cuda()
    shadow = {{name: each.clone(){kept} for name, each in net.state_dict().items()}}
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        net(torch.randn(8, 768, device="cuda")).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, each in net.state_dict().items():
                shadow[name].lerp_(each{taken}, 0.01)
"""


def run(forks, path, kept="", taken=""):
    path.mkdir()
    done = forks.run_code(PROGRAM.format(kept=kept, taken=taken), cwd=path, variables={})
    return done, load(path / "run").recordings[0]


def test_a_copy_that_steps_update_is_kept_on_the_cpu_by_both_halves_of_the_edit(forks, tmp_path):
    _, plain = run(forks, tmp_path / "plain")
    half, _ = run(forks, tmp_path / "half", kept=".cpu()")
    whole, done = run(forks, tmp_path / "whole", kept=".cpu()", taken=".cpu()")
    (found,) = (each for each in plain.held_once() if each.kind == "weights_copied")

    assert "same device" in half.stderr
    assert whole.returncode == 0, whole.stderr
    assert "takes .cpu() of these too" in found.advice
    assert plain.peak().allocated.n_bytes - done.peak().allocated.n_bytes >= 0.95 * found.n_bytes
