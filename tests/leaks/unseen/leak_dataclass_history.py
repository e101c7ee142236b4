"""The state of a run as dataclasses with slots, in a functional style: each step's record is kept."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class StepRecord:
    number: int
    loss: float
    features: torch.Tensor


@dataclass(slots=True)
class TrainState:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    records: list[StepRecord] = field(default_factory=list)  # HOLDER: records


def features_of(model, batch):
    return model[:2](batch)  # LEAK: kept_output


def train_step(state, batch, target):
    features = features_of(state.model, batch)
    loss = (state.model[2](features) - target).pow(2).mean()
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    record = StepRecord(len(state.records), loss.item(), features.detach())
    state.records.append(record)  # KEPT
    return state


def main(steps, device):
    model = nn.Sequential(nn.Linear(32, 256), nn.SiLU(), nn.Linear(256, 1)).to(device)
    state = TrainState(model, torch.optim.Adam(model.parameters()))
    for _ in range(steps):
        state = train_step(state, torch.randn(128, 32, device=device), torch.randn(128, 1, device=device))
