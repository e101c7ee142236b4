"""A trainer that logs {"loss": loss} each step, with retain_graph left over from a try."""

import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.LayerNorm(256), nn.Linear(256, 4)).to(
            device
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.logs = []  # HOLDER: logs

    def train_step(self, batch):
        out = self.model(batch)  # LEAK: retain_graph
        return {"loss": nn.functional.mse_loss(out, torch.zeros_like(out)), "lr": 1e-3}  # LEAK: retain_graph

    def fit(self, steps):
        for _ in range(steps):
            log = self.train_step(torch.randn(96, 128, device=self.device))  # LEAK: retain_graph
            self.optimizer.zero_grad(set_to_none=True)
            log["loss"].backward(retain_graph=True)
            self.optimizer.step()
            self.logs.append(log)  # KEPT


def main(steps, device):
    Trainer(device).fit(steps)
