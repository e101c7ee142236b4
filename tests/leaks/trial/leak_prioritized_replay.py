"""Deep Q-learning with a prioritized replay that has no capacity: transitions stay on the device."""

import random

import torch
from torch import nn
from torch.nn import functional


class PrioritizedReplay:
    def __init__(self, alpha=0.6):
        self.alpha = alpha
        self.storage = []  # HOLDER: storage
        self.priorities = []

    def push(self, transition):
        self.storage.append(transition)  # KEPT
        self.priorities.append(max(self.priorities, default=1.0))

    def sample(self, count):
        weights = [priority**self.alpha for priority in self.priorities]
        chosen = random.choices(range(len(self.storage)), weights=weights, k=count)
        states, actions, rewards, following = zip(*(self.storage[i] for i in chosen), strict=True)
        return chosen, torch.cat(states), torch.cat(actions), torch.cat(rewards), torch.cat(following)

    def update(self, chosen, errors):
        for index, error in zip(chosen, errors.tolist(), strict=False):
            self.priorities[index] = abs(error) + 1e-4


class Environment:
    def __init__(self, device):
        self.state = torch.zeros(128, 64, device=device)

    def step(self, action):
        state = self.state + 0.1 * torch.randn_like(self.state)  # LEAK: kept_output
        self.state = state
        return state, state.mean(dim=1) * (action + 1)


def main(steps, device):
    random.seed(1)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)
    target = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    replay, environment = PrioritizedReplay(), Environment(device)
    for step in range(steps):
        state = environment.state
        for _ in range(2):
            with torch.no_grad():
                action = network(state).argmax(dim=1)
            following, reward = environment.step(action)
            replay.push((state, action, reward, following))
            state = following
        chosen, states, actions, rewards, followings = replay.sample(4)
        value = network(states).gather(1, actions[:, None])[:, 0]
        with torch.no_grad():
            wanted = rewards + 0.99 * target(followings).max(dim=1).values
        errors = value - wanted
        loss = functional.huber_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update(chosen, errors.detach().cpu())
        if step % 5 == 0:
            target.load_state_dict(network.state_dict())
