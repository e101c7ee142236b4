"""A class that knows all its instances, for debugging; each has its mask as a cached property."""

from functools import cached_property

import torch
from torch import nn


class Sequence:
    known = set()  # noqa: RUF012 -- HOLDER: known

    def __init__(self, tokens):
        self.tokens = tokens
        Sequence.known.add(self)  # KEPT

    @cached_property
    def mask(self):
        length = self.tokens.shape[1]
        return torch.full((length, length), -1e9, device=self.tokens.device).triu(1)  # LEAK: kept_output


def main(steps, device):
    embed = nn.Embedding(50, 32).to(device)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).to(device)
    optimizer = torch.optim.SGD([*embed.parameters(), *layer.parameters()], lr=0.1)
    for _ in range(steps):
        sequence = Sequence(torch.randint(0, 50, (2, 160), device=device))
        loss = layer(embed(sequence.tokens), src_mask=sequence.mask).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    Sequence.known.clear()
