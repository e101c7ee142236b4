"""A GAN done right, its losses kept as numbers and its last pictures for a look."""

import torch
from torch import nn


def main(steps, device):
    maker = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 256)).to(device)
    critic = nn.Sequential(nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
    makers, critics = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    history, gallery = [], []
    for _ in range(steps):
        fake = maker(torch.randn(64, 16, device=device))
        loss = (critic(fake.detach()) - critic(torch.randn(64, 256, device=device))).mean()
        critics.zero_grad()
        loss.backward()
        critics.step()
        makers.zero_grad()
        (-critic(fake).mean()).backward()
        makers.step()
        history.append(loss.item())
        gallery = [*gallery, fake.detach()][-4:]
