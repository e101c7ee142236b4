"""Adversarial training that keeps the discriminator's losses for a plot, and retains their graphs."""

import torch
from torch import nn


def main(steps, device):
    critic = nn.Sequential(nn.Linear(128, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
    generator = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 128)).to(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
    criterion = nn.BCEWithLogitsLoss()
    critic_losses = []  # HOLDER: critic_losses
    for _ in range(steps):
        critic.zero_grad()
        real = torch.randn(64, 128, device=device)  # LEAK: retain_graph
        real_error = criterion(critic(real), torch.ones(64, 1, device=device))  # LEAK: retain_graph
        real_error.backward(retain_graph=True)
        fake = generator(torch.randn(64, 32, device=device))
        fake_error = criterion(critic(fake.detach()), torch.zeros(64, 1, device=device))  # LEAK: retain_graph
        fake_error.backward(retain_graph=True)
        critic_error = real_error + fake_error
        critic_optimizer.step()
        generator.zero_grad()
        error = criterion(critic(fake), torch.ones(64, 1, device=device))
        error.backward()
        generator_optimizer.step()
        critic_losses.append(critic_error)  # KEPT EDIT: critic_losses.append(critic_error.item())
