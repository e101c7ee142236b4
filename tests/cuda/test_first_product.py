"""The workspace of a first matrix product outside of every phase, and a tensor of its size that is none."""

import pytest
from standin_fixtures import HAS_WORKSPACE_PER_PRODUCT

from vramscope.loading import load

pytestmark = pytest.mark.standin

PROGRAM = """
import torch, vramscope
torch.backends.cudnn.enabled = False
with vramscope.record("run", quiet=True):
    {before}
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        net(torch.ones(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
MIB = 1 << 20


@pytest.mark.skipif(HAS_WORKSPACE_PER_PRODUCT, reason="each product has a workspace of its own")
@pytest.mark.parametrize(
    ("before", "n_unknown"),
    [
        ("poses = torch.ones(4, 4, device='cuda'); pose = poses @ poses", 0),
        ("small, data = (torch.zeros(n, device='cuda') for n in (16, 8 << 20))", 1),
    ],
)
def test_a_workspace_made_outside_of_every_phase_is_one(forks, tmp_path, before, n_unknown):
    """Two of 32 MiB, of the thread of the program and that of autograd; data of that size are none."""
    done = forks.run_code(PROGRAM.format(before=before), cwd=tmp_path, variables={})
    assert done.returncode == 0, done.stderr
    (recording,) = load(tmp_path / "run").recordings
    found = recording.categories().totals

    assert found["workspace"] == 2 * 32 * MIB
    assert 0 <= found.get("unknown", 0) - n_unknown * 32 * MIB < MIB
