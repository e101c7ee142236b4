"""Reinforcement learning: a rollout of random length is collected, learnt from, and dropped."""

import random

import torch
from torch import nn


def main(steps, device):
    random.seed(5)
    policy = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 4)).to(device)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(steps):
        rewards, chances = [], []
        state = torch.zeros(64, 32, device=device)
        for _ in range(random.randint(3, 20)):
            chances.append(policy(state).log_softmax(-1))
            state = state + torch.randn_like(state)
            rewards.append(state.mean().detach())
        loss = -sum(chance.mean() * reward for chance, reward in zip(chances, rewards, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
