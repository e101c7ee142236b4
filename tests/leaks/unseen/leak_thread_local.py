"""Statistics in a threading.local that a decorator fills: nobody empties it."""

import functools
import threading

import torch
from torch import nn

scratch = threading.local()


def remembered(function):
    @functools.wraps(function)
    def wrapper(*args):
        result = function(*args)
        if not hasattr(scratch, "results"):
            scratch.results = []  # HOLDER: results
        scratch.results.append(result.detach())  # KEPT
        return result

    return wrapper


@remembered
def attention(query, key):
    return torch.softmax(query @ key.transpose(1, 2) / 8, dim=-1)  # LEAK: kept_output


def main(steps, device):
    project = nn.Linear(64, 128).to(device)
    optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
    for _ in range(steps):
        query, key = project(torch.randn(8, 64, 64, device=device)).chunk(2, dim=-1)
        loss = attention(query, key).diagonal(dim1=1, dim2=2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scratch.__dict__.clear()
