"""``python bare_snapshots.py FOLDER``: the same trainings, recorded by us, and with torch's history alone.

Each runs in a process of its own, so that all of its runs allocate the same blocks in the same order.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from children import Work, in_child, linger
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import vramscope

N_STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, again: str = "") -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(64, 100)
        self.again = again

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.again == "reentrant") if self.again else block(x)
        return self.head(x)


def _texts() -> torch.Tensor:
    return torch.randint(100, (16, 32)).cuda()


def _loss(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(text).flatten(0, 1), text.flatten())


def _train(again: str) -> None:
    model = Model(again).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(N_STEPS):
        _loss(model, _texts()).backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpointed() -> None:
    _train("again")


def reentrant() -> None:
    _train("reentrant")


def half_with_evaluation() -> None:
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(N_STEPS):
        for _ in range(2):
            with torch.autocast("cuda"):
                loss = _loss(model, _texts())
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            kept = model(_texts())
    del kept


def closure() -> None:
    """Train with a closure, as Lightning does: the optimizer calls forward and backward."""
    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(model, _texts())
        loss.backward()
        return loss

    for _ in range(N_STEPS):
        optimizer.step(compute)


PROGRAMS = {each.__name__: each for each in (checkpointed, reentrant, half_with_evaluation, closure)}


def recorded(folder: Path, name: str) -> None:
    with vramscope.record(folder / f"{name}-recorded", quiet=True):
        PROGRAMS[name]()


def snapshot(context: str, folder: Path, name: str) -> None:
    """Record the history; with *context* ``alloc`` torch keeps no stacks for frees."""
    torch.cuda.memory._record_memory_history(context=context, stacks="python")
    PROGRAMS[name]()
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}-{context}.pickle"))


HOW = {"recorded": recorded, "all": partial(snapshot, "all"), "alloc": partial(snapshot, "alloc")}


def main() -> Work | None:
    folder = Path(sys.argv[1])
    for name in PROGRAMS:
        for how, run in HOW.items():
            work = in_child(partial(run, folder, name), folder / f"{name}-{how}.out")
            if work is not None:
                return work
    return None


if __name__ == "__main__":
    work = main()
    if work is not None:
        work()
        linger()
