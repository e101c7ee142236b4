"""What sharding would leave, estimated from a plain run, is what one rank of a genuine sharded run needs."""

import json

import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.loading import load

pytestmark = pytest.mark.standin

PROGRAM = """
import contextlib, sys
import torch.distributed as dist
from torch import nn

mode, n_words = sys.argv[2], int(sys.argv[3])

def block(d):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

recorder = contextlib.nullcontext()
if mode == "plain":
    import vramscope
    recorder = vramscope.record(sys.argv[1], quiet=True)
else:  # one rank of a group that sends nothing
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(mode[-1]))
with recorder:
    layers = [nn.Embedding(n_words, 256), *(block(256) for _ in range(6)), nn.Linear(256, n_words)]
    model = nn.Sequential(*layers).cuda()
    kind, known = torch.optim.AdamW, {"lr": 1e-4, "foreach": True}
    if mode.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard
        for each in (*model, model):
            fully_shard(each)
    if mode.startswith("zero"):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **known)
    else:
        optimizer = kind(model.parameters(), **known)
    torch.cuda.reset_peak_memory_stats()
    for number in range(4):
        x = torch.zeros(4, 16, dtype=torch.long, device="cuda")
        nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
answer = torch.cuda.max_memory_allocated()
"""
SAID = {"zero": "ZeRO-1", "fsdp": "ZeRO-3/FSDP"}


@pytest.mark.parametrize("n_words", [pytest.param(1000, marks=pytest.mark.exhaustive), 20_000])
def test_a_rank_needs_what_was_said(python, tmp_path, n_words):
    """The embedding and the head of 20,000 words are most: each is of one rank in stage 1."""
    file, answers = tmp_path / "script.py", {}
    file.write_text(BEFORE + PROGRAM + AFTER.format(path=str(tmp_path / "answer.json")))
    for mode in ("plain", "zero 2", "zero 4", "fsdp 2", "fsdp 4"):
        done = python(file, tmp_path / "run", mode, n_words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        answers[mode] = json.loads((tmp_path / "answer.json").read_text())
    (recording,) = load(tmp_path / "run").recordings
    found = {n_ranks: recording.strategies(n_ranks) for n_ranks in (2, 4)}

    assert found[2].peak_bytes == answers.pop("plain")
    for mode, peak_bytes in answers.items():
        of = found[int(mode[-1])]
        (said,) = (each for each in of.advised + of.undecided if each.name.startswith(SAID[mode[:4]]))
        assert said.low_bytes <= peak_bytes <= said.high_bytes, mode
        if mode.startswith("zero"):
            assert said.peak_bytes == pytest.approx(peak_bytes, rel=0.01)
