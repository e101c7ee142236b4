"""Soft actor-critic: three optimizers, two targets, a replay memory that is allocated at the start."""

import copy

import torch
from torch import nn


def network(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, n_out))


class Memory:
    def __init__(self, capacity, device):
        self.states = torch.zeros(capacity, 24, device=device)
        self.actions = torch.zeros(capacity, 4, device=device)
        self.rewards = torch.zeros(capacity, device=device)
        self.at, self.full, self.capacity = 0, 0, capacity

    def add(self, state, action, reward):
        rows = torch.arange(self.at, self.at + len(state), device=state.device) % self.capacity
        self.states[rows], self.actions[rows], self.rewards[rows] = state, action, reward
        self.at = (self.at + len(state)) % self.capacity
        self.full = min(self.full + len(state), self.capacity)

    def sample(self, count):
        rows = torch.randint(0, self.full, (count,), device=self.states.device)
        return self.states[rows], self.actions[rows], self.rewards[rows]


def main(steps, device):
    actor = network(24, 4).to(device)
    critics = [network(28, 1).to(device) for _ in range(2)]
    targets = [copy.deepcopy(critic) for critic in critics]
    temperature = torch.zeros(1, device=device, requires_grad=True)
    of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    of_critics = torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=1e-3)
    of_temperature = torch.optim.Adam([temperature], lr=1e-3)
    memory = Memory(4096, device)
    state = torch.randn(64, 24, device=device)
    for _ in range(steps):
        with torch.no_grad():
            action = actor(state).tanh() + 0.1 * torch.randn(64, 4, device=device)
        memory.add(state, action, state.mean(dim=1))
        state = 0.9 * state + 0.1 * torch.randn_like(state)
        states, actions, rewards = memory.sample(256)
        with torch.no_grad():
            both = torch.cat([states, actor(states).tanh()], dim=1)
            wanted = rewards[:, None] + 0.9 * torch.min(*(target(both) for target in targets))
        value_loss = sum(
            (critic(torch.cat([states, actions], dim=1)) - wanted).square().mean() for critic in critics
        )
        of_critics.zero_grad()
        value_loss.backward()
        of_critics.step()
        chosen = actor(states).tanh()
        entropy = chosen.square().mean()
        policy_loss = (
            -critics[0](torch.cat([states, chosen], dim=1)).mean() + temperature.exp().detach() * entropy
        )
        of_actor.zero_grad()
        policy_loss.backward()
        of_actor.step()
        of_temperature.zero_grad()
        (temperature.exp() * (entropy.detach() - 0.2)).sum().backward()
        of_temperature.step()
        with torch.no_grad():
            for target, critic in zip(targets, critics, strict=True):
                for theirs, mine in zip(target.parameters(), critic.parameters(), strict=True):
                    theirs.lerp_(mine, 0.01)
