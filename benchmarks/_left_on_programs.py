"""The ten programs of ``left_on.py``: loops with the bugs that people write, and healthy ones beside them.

Each function makes the state of a program and returns its step, which keeps what the bug keeps.
"""

import copy
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[int], None]
WIDTH = 256
EVALUATED_EVERY = 50
FAILS_AT = 900


def _network() -> tuple[nn.Module, torch.optim.Optimizer]:
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
    return network, torch.optim.Adam(network.parameters())


def _batch(n_rows: int = 64) -> Tensor:
    return torch.randn(n_rows, WIDTH, device="cuda")


def _update(optimizer: torch.optim.Optimizer, loss: Tensor, **options: Any) -> None:
    optimizer.zero_grad()
    loss.backward(**options)
    optimizer.step()


def two_lists() -> Step:
    """One line makes two tensors; a window forgets the oldest, an archive nothing."""
    network, optimizer = _network()
    window, archive = [], []

    def sample() -> Tensor:
        return network(_batch())

    def step(_: int) -> None:
        first, second = [sample() for _ in range(2)]
        window.append(first.data)
        if len(window) > 60:
            window.pop(0)
        archive.append(second.detach())
        _update(optimizer, first.square().mean() + second.square().mean())

    return step


def bounded_deque() -> Step:
    """The program of two lists, with a deque as the window."""
    network, optimizer = _network()
    window: deque[Tensor] = deque(maxlen=90)
    archive = []

    def sample() -> Tensor:
        return network(_batch())

    def step(_: int) -> None:
        parts = [sample() for _ in range(3)]
        window.extend(part.detach() for part in parts[:2])
        archive.append(parts[2].detach())
        _update(optimizer, torch.stack([part.square().mean() for part in parts]).sum())

    return step


def closures() -> Step:
    """A list of callbacks, each of which keeps its batch."""
    network, optimizer = _network()
    after_epoch: list[Callable[[], Any]] = []

    def step(_: int) -> None:
        x = _batch()
        out = network(x)
        after_epoch.append(lambda x=x, out=out: (x.mean(), out.mean()))
        _update(optimizer, out.square().mean())

    return step


def metric() -> Step:
    """Evaluation without no_grad every four steps, whose outputs a metric keeps."""
    network, optimizer = _network()
    predictions: list[Tensor] = []

    def step(number: int) -> None:
        _update(optimizer, network(_batch()).square().mean())
        if number % 4 == 3:
            network.eval()
            predictions.extend(network(_batch()) for _ in range(3))
            network.train()

    return step


def copies() -> Step:
    """A copy of the model in a dict at every step, in a loop of varying lengths."""
    network, optimizer = _network()
    lengths = random.Random(0)
    averages: dict[int, nn.Module] = {}

    def step(number: int) -> None:
        _update(optimizer, network(_batch(lengths.randint(200, 2000))).square().mean())
        averages[number] = copy.deepcopy(network).eval()

    return step


def groups() -> Step:
    """A new head and a new group of parameters at every step."""
    network, optimizer = _network()

    def step(_: int) -> None:
        head = nn.Linear(WIDTH, 64).cuda()
        optimizer.add_param_group({"params": head.parameters()})
        _update(optimizer, head(network(_batch())).square().mean())

    return step


def pool() -> Step:
    """Healthy: a bounded pool of generated images, of which some are replaced."""
    network, optimizer = _network()
    places, images = random.Random(0), []

    def step(_: int) -> None:
        out = network(_batch())
        if len(images) < 50:
            images.append(out.detach())
        elif places.random() < 0.5:
            images[places.randrange(50)] = out.detach()
        _update(optimizer, out.square().mean())

    return step


def create_graph() -> Step:
    """Healthy: ``backward(create_graph=True)`` with gradients that are cleared before the next."""
    network, optimizer = _network()

    def step(_: int) -> None:
        _update(optimizer, network(_batch()).square().mean(), create_graph=True)

    return step


def lengths() -> Step:
    """Healthy: batches of varying lengths, evaluated every 50 steps on larger ones."""
    network, optimizer = _network()
    rows = random.Random(1)

    def step(number: int) -> None:
        _update(optimizer, network(_batch(rows.randint(32, 512))).square().mean())
        if number % EVALUATED_EVERY == EVALUATED_EVERY - 1:
            network.eval()
            with torch.no_grad():
                for _ in range(3):
                    network(_batch(1024))
            network.train()

    return step


def long_batch() -> Step:
    """Varying lengths, and at step 900 a batch that does not fit."""
    network, optimizer = _network()
    rows = random.Random(2)

    def step(number: int) -> None:
        n_rows = 1_000_000 if number == FAILS_AT else rows.randint(32, 512)
        _update(optimizer, network(_batch(n_rows)).square().mean())

    return step


PROGRAMS: dict[str, tuple[Callable[[], Step], str, int]] = {
    "two lists": (two_lists, "`archive` 65,536", 150),
    "two lists, a deque": (bounded_deque, "`archive` 65,536", 150),
    "closures": (closures, "`after_epoch` 131,072", 150),
    "metric": (metric, "`predictions` 147,456", 150),
    "copies": (copies, "`averages` 526,336", 150),
    "parameter groups": (groups, "`optimizer` 198,144", 150),
    "bounded pool": (pool, "none", 150),
    "create_graph": (create_graph, "none", 150),
    "lengths, evaluated": (lengths, "none", 150),
    "a long batch": (long_batch, "none", 1000),
}
"""Each program by its name: what makes the step, what leaks in bytes a step, and the number of steps."""
