"""Meta-learning whose fast weights are not begun again with each task: they keep the graph of all tasks."""

import torch


def predict(weights, x):
    first, second = weights
    return torch.tanh(x @ first) @ second  # LEAK: undetached_state


def adapt(weights, x, y, lr=0.01):  # HOLDER: weights (the same list as "fast" below)
    loss = (predict(weights, x) - y).square().mean()
    gradients = torch.autograd.grad(loss, weights, create_graph=True)  # LEAK: undetached_state
    return [w - lr * g for w, g in zip(weights, gradients, strict=True)]


def main(steps, device):
    slow = [torch.randn(32, 256, device=device) * 0.1, torch.randn(256, 1, device=device) * 0.1]
    for weight in slow:
        weight.requires_grad_()
    fast = slow
    for _ in range(steps):
        x = torch.randn(64, 32, device=device)
        fast = adapt(fast, x, x.sum(1, keepdim=True))  # KEPT
