"""A training of Ray Train on two workers: each is a rank of one recording, and the reports have the peaks."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import vramscope
from vramscope.integrations.ray_train import VramscopeReporter


def train(config):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    net = prepare_model(net)
    optimizer = torch.optim.AdamW(net.parameters())
    with VramscopeReporter(config["traces"], device="simulated", quiet=True) as reporter:
        for _ in range(12):
            loss = net(torch.randn(64, 512)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            reporter.step()
        # Ray Train keeps the metrics of a report that has a checkpoint.
        with TemporaryDirectory() as folder:
            torch.save(net.state_dict(), Path(folder, "net.pt"))
            reporter.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


traces = Path("traces/ray").absolute()
# Two for the workers, and one that old versions (2.40) take for the trainer.
ray.init(num_cpus=3, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
trainer = TorchTrainer(
    train,
    train_loop_config={"traces": str(traces)},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="example", storage_path=str(Path("ray_results").absolute())),
)
metrics = trainer.fit().metrics
print(f"{metrics['vram/peak_allocated_bytes']:,} bytes at the peak of rank 0")
for recording in vramscope.load(traces).recordings:
    print(f"rank {recording.process.rank}: {len(recording.steps)} steps")
