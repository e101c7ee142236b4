"""A recurrent language model with truncated backpropagation done right, on sentences of all lengths."""

import random

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(200, 64), nn.LSTM(64, 64), nn.Linear(64, 200)

    def forward(self, words, state):
        hidden, state = self.rnn(self.embed(words), state)
        return self.out(hidden), state


def detached(state):
    return tuple(part.detach() for part in state)


def main(steps, device):
    random.seed(11)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, perplexities = None, []
    for step in range(steps):
        words = torch.randint(0, 200, (random.randint(5, 30), 16), device=device)
        state = None if step % 10 == 0 else detached(state)
        logits, state = model(words, state)
        loss = nn.functional.cross_entropy(logits[:-1].flatten(0, 1), words[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        perplexities.append(loss.detach().exp())
