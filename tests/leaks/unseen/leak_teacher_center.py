"""Self-distillation whose running centre of the teacher's outputs is never detached."""

import copy

import torch
from torch import nn
from torch.nn import functional


class DistillationLoss(nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.center = torch.zeros(1, width, device=device)  # HOLDER: center

    def forward(self, student, teacher):
        target = functional.softmax((teacher - self.center).detach() / 0.04, dim=-1)
        loss = -(target * functional.log_softmax(student / 0.1, dim=-1)).sum(-1).mean()
        self.update(teacher)
        return loss

    def update(self, teacher):
        self.center = self.center * 0.9 + teacher.mean(0, keepdim=True) * 0.1  # KEPT


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))  # LEAK: undetached_state
        return self.last(hidden)


def main(steps, device):
    student = Backbone().to(device)
    teacher = copy.deepcopy(student)
    criterion = DistillationLoss(64, device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(steps):
        views = torch.randn(96, 64, device=device)
        loss = criterion(student(views), teacher(views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.mul_(0.99).add_(theirs, alpha=0.01)
