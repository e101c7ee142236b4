"""A clean training run: a small transformer, AdamW, six steps; nothing leaks.

Run it as ``python sample_traces/transformer.py``: on a machine without a GPU it records the simulated
device. What the recording must show is counted from the model itself, into ``transformer.expected.json``.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import vramscope

HERE = Path(__file__).parent
VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH, STEPS = 512, 128, 4, 3, 8, 64, 6


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A small transformer from tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


def train(model: nn.Module, device: str) -> None:
    """Train next-token prediction on random tokens."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def expected(model: nn.Module) -> dict[str, object]:
    """Return the figures that follow from the model alone."""
    sizes = [4 * parameter.numel() for parameter in model.parameters()]
    return {
        "source": "simulated",
        "torch": torch.__version__,
        "steps": STEPS,
        "parameter_tensors": len(sizes),
        "parameter_bytes_requested": sum(sizes),
        # AdamW keeps two moments and one step counter (4 bytes) for each parameter.
        "optimizer_bytes_requested": 2 * sum(sizes) + 4 * len(sizes),
        "largest_activation_bytes": 4 * BATCH * LENGTH * VOCABULARY,
    }


def main(name: str = "transformer", device: str = "cpu") -> None:
    torch.manual_seed(0)
    # torch imports its compiler with the first optimizer: two seconds that are no training.
    torch.optim.SGD([torch.zeros(1)])
    directory = HERE / name
    shutil.rmtree(directory, ignore_errors=True)
    model = Transformer().to(device)
    with vramscope.record(directory):
        train(model, device)
    (HERE / f"{name}.expected.json").write_text(json.dumps(expected(model), indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
