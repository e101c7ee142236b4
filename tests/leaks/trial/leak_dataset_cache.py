"""A dataset that caches samples on the device, by an index that never comes again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Synthetic(Dataset):
    """Samples drawn from a seed; there is no end to them."""

    def __init__(self, device):
        self.device = device
        self.cache = {}  # HOLDER: cache

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if index not in self.cache:
            generator = torch.Generator().manual_seed(index)
            sample = torch.randn(64, 64, generator=generator)
            self.cache[index] = sample.to(self.device) * 1.0  # LEAK: cache KEPT
        return self.cache[index]


def main(steps, device):
    loader = iter(DataLoader(Synthetic(device), batch_size=8))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        loss = model(next(loader)).logsumexp(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
