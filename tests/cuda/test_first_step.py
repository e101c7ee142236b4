"""A run that fails in the first step of its optimizer: what is advised holds for all of the step."""

import pytest

from vramscope.analysis.oom import findings, oom
from vramscope.loading import load

pytestmark = pytest.mark.standin

PROGRAM = """
import sys, torch, vramscope
from torch import nn
torch.backends.cudnn.enabled = False
net = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(24)]).cuda()
adam, sgd = torch.optim.AdamW, torch.optim.SGD
optimizer = adam(net.parameters()) if sys.argv[1] == "adam" else sgd(net.parameters(), momentum=0.9)
with vramscope.record(sys.argv[1], quiet=True):
    for _ in range(3):
        net(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("mebibytes", "is_enough"), [(850, False), (900, True)])
def test_one_moment_is_advised_where_a_run_with_it_ends(forks, tmp_path, mebibytes, is_enough):
    (tmp_path / "program.py").write_text(PROGRAM)
    variables = {"STANDIN_TOTAL_MIB": str(mebibytes)}
    adam, sgd = (
        forks.run(tmp_path / "program.py", which, cwd=tmp_path, variables=variables)
        for which in ("adam", "sgd")
    )
    (failed,), (done,) = (load(tmp_path / which).recordings for which in ("adam", "sgd"))
    moments = [each for each in failed.strategies().advised if each.name == "optimizer with one moment"]

    assert "OutOfMemoryError" in adam.stderr
    assert ("OutOfMemoryError" not in sgd.stderr) == is_enough
    assert ("one moment" in findings(oom(failed))[0].advice) == is_enough
    assert bool(moments) == is_enough
    for each in moments:
        assert each.low_bytes <= done.peak().allocated.n_bytes <= each.high_bytes
