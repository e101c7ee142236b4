"""Two threads that train at once, one phase behind each other, so that different phases surely overlap.

The labels are in the program: what a thread allocates in a phase has a size that nothing else has.
"""

import threading

import torch
from torch import nn

N_STEPS = 4
PHASES = ("forward", "backward", "optimizer")
THREADS = ("first", "second")
ELEMENTS = {
    (thread, phase): 4096 * (1 + row) + 512 * column
    for row, thread in enumerate(THREADS)
    for column, phase in enumerate((*PHASES, "between"))
}
"""What each statement allocates, in elements of float32; no other tensor is as large."""


class Thread:
    """One training; *meet* returns when both threads have called it."""

    def __init__(self, name, meet):
        self.name, self.meet = name, meet
        self.device = torch.get_default_device()
        model = nn.Linear(8, 8)
        self.model = Both(self, model)
        self.optimizer = Allocating(self, model.parameters())

    def allocate(self, phase):
        """Allocate while both threads are in their phases."""
        self.meet()
        for _ in range(3):
            # The default device is of a thread, and autograd has one of its own.
            kept = torch.empty(ELEMENTS[self.name, phase], device=self.device)
            self.meet()
            del kept
        self.meet()

    def step(self):
        loss = self.model(torch.ones(2, 8)).sum()
        # Autograd has one thread for both: it must have ended one backward before the other waits in it.
        self.meet()
        loss.backward()
        self.meet()
        self.optimizer.step()
        self.meet()

    def between(self):
        """Allocate outside of every phase, while the other thread is in one."""
        self.allocate("between")
        self.meet()


class Both(nn.Module):
    """A layer that allocates in its forward and in its backward."""

    def __init__(self, thread, layer):
        super().__init__()
        self.thread, self.layer = thread, layer

    def forward(self, x):
        self.thread.allocate("forward")
        return InBackward.apply(self.layer(x), self.thread)


class InBackward(torch.autograd.Function):
    """Allocates in backward: on CUDA on the thread of autograd."""

    @staticmethod
    def forward(ctx, x, thread):
        ctx.thread = thread
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.thread.allocate("backward")
        return gradient, None


class Allocating(torch.optim.SGD):
    """SGD that allocates."""

    def __init__(self, thread, parameters):
        super().__init__(parameters, lr=0.1)
        self.thread = thread

    def step(self):
        self.thread.allocate("optimizer")
        return super().step()


def run(recorded):
    """Train in two threads, each within ``recorded()``; return the ident of each."""
    # The first optimizer imports the compiler: once, and in no thread that another one waits for.
    torch.optim.SGD([torch.zeros(1)])
    barrier = threading.Barrier(2)
    device, idents, errors = torch.get_default_device(), {}, []

    def work(name):
        thread = Thread(name, lambda: barrier.wait(200))
        idents[name] = threading.get_ident()
        with recorded():
            if name == "second":
                thread.between()
            for _ in range(N_STEPS):
                thread.step()
            if name == "first":
                thread.between()

    def guarded(name):
        try:
            with device:
                work(name)
        except Exception as error:  # noqa: BLE001 -- raised on the main thread
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=guarded, args=(name,)) for name in THREADS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return idents
