"""GPT-2 small, 124 million parameters, in bfloat16 on one GPU: the training that README asks about.

``vramscope predict --card 4090 sample_traces/gpt.py`` runs it dry, on a machine without a GPU.
"""

from argparse import ArgumentParser

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 50_304, 768, 12, 12, 1_024


class Block(nn.Module):
    """Attention and a perceptron, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A decoder from tokens to logits; the embedding is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(positions)
        return self.norm(self.blocks(x)) @ self.embedding.weight.T


def main() -> None:
    parser = ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--float32", action="store_true", help="without autocast")
    args = parser.parse_args()
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        tokens = torch.randint(VOCABULARY, (args.batch, args.length + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=not args.float32):
            logits = model(tokens[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
