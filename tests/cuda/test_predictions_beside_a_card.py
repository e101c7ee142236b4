"""Predictions by each checked version of torch beside a card, held against the allocator of that version."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from standin_fixtures import HERE

from vramscope.prediction.dry.versions import CHECKED

pytestmark = [pytest.mark.standin, pytest.mark.slow]

ROOT = HERE.parents[1]
SAMPLES = Path(__file__).parent / "scripts" / "operator_samples.py"
PROGRAM = """
import sys, torch
from torch import nn
from torch.nn import functional as F
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(256), nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (8, 32)).transpose(1, 2) for each in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).flatten(2))

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(5000, 256), nn.Sequential(*[Block() for _ in range(3)])
        self.head = nn.Linear(256, 5000)

    def forward(self, ids):
        return F.cross_entropy(self.head(self.blocks(self.tokens(ids))).flatten(0, 1), ids.flatten())

class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        first = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), nn.AdaptiveAvgPool2d(4))
        self.layers = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(1024, 10))

    def forward(self, ids):
        return self.layers(torch.randn(32, 3, 64, 64, device="cuda")).square().mean()

model = {"language": Language, "pictures": Pictures}[sys.argv[1]]().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=sys.argv[1] == "language"):
        loss = model(torch.randint(0, 5000, (8, 256)).cuda())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
if "truth" in sys.argv:
    print([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()], flush=True)
    import os; os._exit(0)
"""


@pytest.fixture(
    params=[*(pytest.param(each, marks=pytest.mark.exhaustive) for each in CHECKED[:-1]), CHECKED[-1]]
)
def launcher(request: pytest.FixtureRequest) -> Path:
    """The Python whose torch of one checked version sees a card."""
    found = ROOT / ".cache" / "standin" / request.param / "python"
    header = found.parent / "packages" / "torch" / "include" / "ATen" / "autocast_mode.h"
    if not (found.exists() and header.exists()):
        pytest.skip(
            f"torch {request.param} over the stand-in is not built: make standin TORCH={request.param}"
        )
    return found


def _said(launcher: Path, *command: object, **variables: str) -> Any:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | variables
    done = subprocess.run(
        [launcher, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["language", "pictures"])
def test_a_checked_prediction_is_what_the_allocator_of_that_version_counts(
    launcher: Path, tmp_path: Path, name: str
):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    truth = _said(launcher, program, name, "truth")

    found = _said(launcher, "-m", "vramscope", "predict", "--json", program, name)

    assert [found["peak_allocated_bytes"], found["peak_reserved_bytes"]] == truth
    assert (found["certainty"], found["reasons"]) == ("checked", [])


def test_operators_take_what_the_table_of_each_version_says(launcher: Path):
    import operator_samples

    ask = "import json, os, sys; sys.path.insert(0, sys.argv[1]); import operator_samples as samples\n"
    end = "\nsys.stdout.flush(); os._exit(0)"
    # A small workspace hides nothing that an operator takes beside it.
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":16:1", "CUBLASLT_WORKSPACE_SIZE": "8"}
    code = {home: f"{ask}print(json.dumps(samples.{home}())){end}" for home in ("peaks", "predicted_peaks")}

    truth, found = (_said(launcher, "-c", text, SAMPLES.parent, **variables) for text in code.values())

    wrong = {name for name in truth if abs(found[name] - truth[name]) > operator_samples.NEARLY.get(name, 0)}
    assert {name: (found[name], truth[name]) for name in wrong} == {}
