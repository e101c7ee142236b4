"""A language model whose logits are kept "for the perplexity at the end", every iteration's on the device."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 128)
        self.head = nn.Linear(128, 64, bias=False)

    def forward(self, tokens, targets):
        logits = self.head(self.embed(tokens))  # LEAK: kept_output
        loss = nn.functional.cross_entropy(logits.view(-1, 64), targets.view(-1))
        return logits, loss


def main(steps, device):
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    all_logits = []  # HOLDER: all_logits
    for _ in range(steps):
        tokens = torch.randint(64, (8, 64), device=device)
        logits, loss = model(tokens, tokens.roll(-1, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        all_logits.append(logits)  # KEPT EDIT: all_logits.append(logits.detach().cpu())
