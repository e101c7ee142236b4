"""A leak to find: ``retain_graph=True`` in a GAN, and a history that keeps every discriminator loss.

The author got "Trying to backward through the graph a second time", added ``retain_graph=True``, and
appends ``loss_d`` to a list for a plot. Each step then keeps the discriminator's graph of both batches.
"""

import json
import shutil
from pathlib import Path

import torch
from torch import nn

import vramscope

HERE = Path(__file__).parent
NOISE, HIDDEN, IMAGE, BATCH, STEPS = 32, 256, 1024, 64, 8


def networks() -> tuple[nn.Module, nn.Module]:
    generator = nn.Sequential(nn.Linear(NOISE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, IMAGE), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(IMAGE, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, 1))
    return generator, discriminator


def train(generator: nn.Module, discriminator: nn.Module, history: list[torch.Tensor]) -> None:
    judge = nn.BCEWithLogitsLoss()
    adam_d = torch.optim.Adam(discriminator.parameters())
    adam_g = torch.optim.SGD(generator.parameters(), lr=1e-3)
    genuine, forged = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    for _ in range(STEPS):
        real = torch.randn(BATCH, IMAGE)
        fake = generator(torch.randn(BATCH, NOISE))
        loss_d = judge(discriminator(real), genuine) + judge(discriminator(fake), forged)
        adam_d.zero_grad()
        loss_d.backward(retain_graph=True)
        adam_g.zero_grad()
        judge(discriminator(fake), genuine).backward()
        adam_d.step()
        adam_g.step()
        history.append(loss_d)


def kept_bytes_per_step() -> int:
    """Bytes that a step keeps, counted by hand: what the discriminator's graph saved for both batches.

    Its first layer saves its input, the activation its input, the last layer its input (the activation's
    output), the loss the logits; plus the loss itself. The targets are shared by all steps. Float32, and
    every block is a multiple of 512 bytes already but for the 0-dimensional loss and the logits (256).
    """
    one_batch = BATCH * IMAGE * 4 + 2 * BATCH * HIDDEN * 4 + 512
    return 2 * one_batch + 512


def main() -> None:
    torch.manual_seed(0)
    # torch imports its compiler with the first optimizer: two seconds that are no training.
    torch.optim.SGD([torch.zeros(1)])
    directory = HERE / "gan-retain-graph"
    shutil.rmtree(directory, ignore_errors=True)
    history: list[torch.Tensor] = []
    with vramscope.record(directory):
        train(*networks(), history)
    facts = {
        "source": "simulated",
        "torch": torch.__version__,
        "steps": STEPS,
        "kept_bytes_per_step": kept_bytes_per_step(),
    }
    (HERE / "gan-retain-graph.expected.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
