"""A small GPT learns to write its own source code: python THIS_FILE DIRECTORY STEPS."""

# mypy: disable-error-code="misc"
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vramscope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 256, 4, 4, 256, 20


class TransformerBlock(nn.Module):
    """Attention and an MLP, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x: Tensor) -> Tensor:
        """Return causal self-attention over *x*."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        # Attention is written out, so that its matrices appear in the memory.
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(future, float("-inf"))
        mixed: Tensor = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return *x* after attention and MLP."""
        x = x + self.attend(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """A transformer from characters to a score for every next character."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of the next character at each position."""
        x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches(steps: int) -> list[Tensor]:
    """Return pieces of this file, one character longer than the context."""
    text = Path(__file__).read_bytes()
    starts = torch.randint(len(text) - CONTEXT - 1, (steps, BATCH))
    return [torch.tensor([list(text[i : i + CONTEXT + 1]) for i in row]) for row in starts.tolist()]


def train(directory: str, steps: int) -> None:
    """Train the model; only the line with ``record`` concerns vramscope."""
    torch.manual_seed(0)
    with vramscope.record(directory):
        model = Gpt(vocabulary=256).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, batch in enumerate(batches(steps), start=1):
            text = batch.to(DEVICE)
            scores = model(text[:, :-1])
            loss = cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step:2} of {steps}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
