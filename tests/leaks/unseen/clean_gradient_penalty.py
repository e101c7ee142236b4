"""WGAN with a gradient penalty: torch.autograd.grad with create_graph, and numbers in the log."""

import torch
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1, device=real.device)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def main(steps, device):
    critic = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
    generator = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    of_critic = torch.optim.Adam(critic.parameters(), betas=(0.0, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), betas=(0.0, 0.9))
    log = []
    for step in range(steps):
        real = torch.randn(96, 64, device=device)
        fake = generator(torch.randn(96, 16, device=device)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        log.append(loss.item())
        if step % 3 == 2:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(96, 16, device=device))).mean()).backward()
            of_generator.step()
