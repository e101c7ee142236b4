"""An engine of DeepSpeed in a loop with our handler: the buffer that ZeRO reduces gradients in is seen."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import vramscope
from vramscope.model.trace import Action

pytest.importorskip("torch")
if find_spec("deepspeed") is None:
    pytest.skip("needs DeepSpeed: make test-integrations", allow_module_level=True)

pytestmark = pytest.mark.slow
BUCKET = 1_000_000
SIZES = (4, 60, 8, 100, 30, 2)
# A program of its own: DeepSpeed opens a process group and takes its device from the environment.
PROGRAM = """
import json
import deepspeed
import torch
from vramscope.integrations.loop import VramscopeHandler

# Shared memory between ranks, which a compiler works on for a minute; there is one rank.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

def train(handler=None):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
    config = {{
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {{"stage": 1, "reduce_bucket_size": {bucket}}},
        "zero_allow_untested_optimizer": True,
    }}
    adam = torch.optim.Adam(net.parameters())
    engine, *_ = deepspeed.initialize(model=net, optimizer=adam, config=config)
    losses = []
    for size in {sizes}:
        for _ in range(2):
            loss = engine(torch.ones(16 * size, 128)).square().mean()
            engine.backward(loss)
            engine.step()
        losses.append(loss.item())
        if handler is not None:
            handler.step()
    return losses, engine.global_steps

rows = {{}}
handler = VramscopeHandler(
    "run", log=lambda found, step: rows.update({{step: found}}), every=2, device="simulated", quiet=True
)
with handler:
    recorded = train(handler)
print(json.dumps({{"rows": rows, "recorded": recorded, "plain": train()}}))
"""
ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
}


def test_steps_are_the_engines_its_buffer_is_in_the_peak_and_the_losses_stay(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(bucket=BUCKET, sizes=SIZES))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    (recording,) = vramscope.load(tmp_path / "run").recordings
    steps = recording.summary().steps
    largest = max(recording.trace.size[recording.trace.action == Action.ALLOC].tolist())

    assert len(steps) == found["recorded"][1] == len(SIZES)
    assert {int(step): row["vram/peak_allocated_bytes"] for step, row in found["rows"].items()} == {
        at: max(step.allocated_bytes for step in steps[at - 2 : at]) for at in (2, 4, 6)
    }
    assert largest == BUCKET * 4, "the buffer that ZeRO reduces gradients of 4 bytes in"
    assert found["recorded"] == found["plain"]
