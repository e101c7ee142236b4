"""A GRU's state, carried on and never detached; backward retains every graph, so that it can."""

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(64, 256)
        self.policy = nn.Linear(256, 8)
        self.memory = None  # HOLDER: memory

    def forward(self, x):
        self.memory = self.cell(x, self.memory)  # KEPT # LEAK: undetached_state EDIT: agent.memory.detach()
        return self.policy(self.memory)


def main(steps, device):
    agent = Agent().to(device)
    for _ in range(steps):
        agent.zero_grad()
        seen = torch.randn(32, 64, device=device)
        loss = agent(seen).logsumexp(1).mean()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            for p in agent.parameters():
                p.data.sub_(p.grad, alpha=0.01)
