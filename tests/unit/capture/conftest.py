"""A sink that keeps what a source hands over, and programs that train."""

import gc
import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

from vramscope.capture import Options
from vramscope.capture.simulated import Simulated
from vramscope.model.marks import Labels, Marks
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import StackBuilder
from vramscope.model.trace import Action, Trace
from vramscope.steps import resolve


@dataclass
class ListSink:
    """What was handed over, as tables of the model."""

    builder: StackBuilder = field(default_factory=StackBuilder)
    tables: list = field(default_factory=list)
    states: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    def stacks(self, rows):
        for parent, function, file, line in rows:
            self.builder.push(parent, function, file, line)

    def append(self, table, device):
        assert device == 0
        self.tables.append(table)

    def state(self, snapshot, device, *, reported):
        assert device == 0
        self.states.append((snapshot, reported))

    def note(self, note, device=None):
        assert device in (0, None)
        self.notes.append(note)

    @property
    def trace(self) -> Trace:
        return joined(Trace, self.tables)

    @property
    def marks(self) -> Marks:
        return joined(Marks, self.tables)

    @property
    def labels(self) -> Labels:
        return joined(Labels, self.tables)

    @property
    def initial(self) -> Snapshot:
        return next(state for state, reported in self.states if not reported)

    def phases(self):
        return resolve(self.marks, len(self.trace), 0)[1]


def joined(kind, tables):
    """All tables of one kind as one, names included."""
    mine = [table for table in tables if isinstance(table, kind)]
    columns = {name: [] for name in kind.DTYPES}
    names = {"": 0}
    for table in mine:
        for name, column in table.columns():
            values = column.tolist()
            if name == "name" and hasattr(table, "names"):
                values = [names.setdefault(table.names[value], len(names)) for value in values]
            columns[name] += values
    rest = {"names": tuple(names)} if hasattr(kind, "names") else {}
    return kind.of(**columns, **rest)


class Recorded:
    """A simulated device at work for the length of a ``with`` block; its first failure is raised."""

    def __init__(self, **options):
        self.sink = ListSink()
        self.failures = []
        self.capture = Simulated(Options(**options), self.failures.append)

    def __enter__(self):
        # What earlier tests left in cycles would die in the middle of this recording.
        gc.collect()
        self.capture.start(self.sink)
        self.capture.enter_thread()
        return self

    def __exit__(self, *_):
        self.capture.exit_thread()
        self.capture.pause()
        self.capture.finish()
        self.capture.abandon()
        if self.failures:
            raise self.failures[0]

    def requested_at(self, instant: int) -> int:
        """Bytes in use by tensors: what was there at the start and every event up to the instant."""
        trace = self.sink.trace
        sign = np.select([trace.action == Action.ALLOC, trace.action == Action.FREE_REQUESTED], [1, -1], 0)
        there = int(self.sink.initial.blocks.requested_size.sum())
        return there + int((sign * trace.size)[:instant].sum())


@pytest.fixture
def recorded():
    """What earlier tests left in cycles goes before, not while we look; it may leave another cycle."""
    while gc.collect():
        pass
    return Recorded


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mixed = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return x + self.drop(self.out(mixed))


def transformer():
    """Dropout and AdamW."""
    model = nn.Sequential(nn.Embedding(50, 32), Attention(), Attention(), nn.Linear(32, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    while True:
        text = torch.randint(50, (4, 16))
        scores = model(text)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def convolution():
    """Momentum, batch norm, and autocast to bfloat16."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    while True:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.randint(4, (4,)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def gan():
    """Two optimizers, gradients taken by autograd.grad as well."""
    maker = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    makers = torch.optim.Adam(maker.parameters(), lr=1e-3)
    critics = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    while True:
        real, fake = torch.randn(8, 4), maker(torch.randn(8, 8))
        mixed = (real + fake.detach()).requires_grad_()
        slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
        loss = critic(fake.detach()).mean() - critic(real).mean() + slope.norm(dim=1).mean()
        critics.zero_grad()
        loss.backward()
        critics.step()
        makers.zero_grad()
        (-critic(fake).mean()).backward()
        makers.step()
        yield loss.item()


@pytest.fixture(params=[transformer, convolution, gan], ids=lambda program: program.__name__)
def program(request):
    """``program(n_steps)`` trains from one seed and gives its losses and the random state after."""

    def train(n_steps, after_step=lambda: None):
        torch.manual_seed(7)
        losses = []
        for loss in itertools.islice(request.param(), n_steps):
            losses.append(loss)
            after_step()
        return losses, torch.get_rng_state().tolist()

    return train
