"""A trainer that is a module itself: its forward is the whole loop of training."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Trainer(nn.Module):
    def __init__(self, model, steps, device):
        super().__init__()
        self.model, self.device = model, device
        self.loader = DataLoader(torch.randn(16 * steps, 256), batch_size=16)
        self.optimizer = torch.optim.Adam(model.parameters())
        self.outputs = []  # HOLDER: outputs

    def forward(self):
        for batch in self.loader:
            x = batch.to(self.device)
            output = self.model(x)  # LEAK: kept_output
            loss = (output - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.outputs.append(output.detach())  # KEPT EDIT: self.outputs.append(output.detach().cpu())


def main(steps, device):
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
    Trainer(model.to(device), steps, device)()
