"""A GAN that keeps the generator's graph through the discriminator's step, and the pictures with it."""

import torch
from torch import nn


class Gan:
    def __init__(self, device):
        self.device = device
        self.generator = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256)).to(device)
        self.critic = nn.Sequential(nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
        self.of_generator = torch.optim.Adam(self.generator.parameters())
        self.of_critic = torch.optim.Adam(self.critic.parameters())
        self.losses = []  # HOLDER: losses

    def step(self):
        fake = self.generator(torch.randn(128, 32, device=self.device))  # LEAK: retain_graph
        real = torch.randn(128, 256, device=self.device)  # LEAK: retain_graph
        loss_c = (self.critic(fake) - self.critic(real)).mean()  # LEAK: retain_graph
        self.of_critic.zero_grad()
        loss_c.backward(retain_graph=True)
        loss_g = -self.critic(fake).mean()  # LEAK: retain_graph
        self.of_generator.zero_grad()
        loss_g.backward(retain_graph=True)
        self.of_critic.step()
        self.of_generator.step()
        self.losses.append((loss_c, loss_g))  # KEPT


def main(steps, device):
    gan = Gan(device)
    for _ in range(steps):
        gan.step()
