"""Truncated backpropagation through time without the detach: retain_graph=True makes it run, and it grows."""

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(50, 64)
        self.rnn = nn.LSTM(64, 128)
        self.decoder = nn.Linear(128, 50)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)  # LEAK: undetached_state
        return self.decoder(output), hidden


def main(steps, device):
    model = RNNModel().to(device)
    criterion = nn.CrossEntropyLoss()
    hidden = (
        torch.zeros(1, 20, 128, device=device),
        torch.zeros(1, 20, 128, device=device),
    )  # HOLDER: hidden
    for _ in range(steps):
        tokens = torch.randint(50, (16, 20), device=device)
        model.zero_grad()
        output, hidden = model(tokens, hidden)  # EDIT: hidden = tuple(state.detach() for state in hidden)
        loss = criterion(output.view(-1, 50), tokens.view(-1))
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
