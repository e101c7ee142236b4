"""Six trainings, and torch's MemTracker asked at the peak of every step what each storage is for.

They run on whatever torch's default device is; nothing here knows vramscope.
"""

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

N_STEPS = 3


class Tracker(MemTracker):
    """Keeps, for the highest moment of each step, the class of every storage that it knows."""

    def __init__(self, n_born, address):
        super().__init__()
        self.n_born = n_born
        self.address = address
        self.device = torch.ones(1).device
        self.peaks = []
        self.top = 0

    def begin_step(self):
        self.peaks.append(None)
        self.top = 0

    def classes(self):
        """For each peak the number of births until then, and address → [class, bytes].

        The class is the last that it gave: a gradient is "Temp" to it until the node that makes it is done.
        """
        return [
            [n_born, {str(at): [info.reftype.value, info.mem_consumed] for at, info in known.items()}]
            for n_born, known in self.peaks
        ]

    def _pre_fw_hook(self, module, inputs):
        # A root module called twice in a step is refused, unless its figures (not used here) are forgotten.
        if not self._mod_tracker.is_bw:
            self.memory_tracking.pop(module, None)
        super()._pre_fw_hook(module, inputs)

    def _update_peak_stats(self, peak_state):
        total = self._curr_mem_snap.get(self.device, {}).get("Total", 0)
        if self.peaks and total > self.top:
            self.top = total
            known = {storage: self._WINFO[storage][0] for storage in list(self._WINFO)}
            self.peaks[-1] = (
                self.n_born(),
                {
                    self.address(storage): info
                    for storage, info in known.items()
                    if info.mem_consumed and info.device == self.device
                },
            )
        super()._update_peak_stats(peak_state)


def train(program, tracker):
    """Three steps of a program under the tracker."""
    torch.manual_seed(0)
    parts, step = program()
    tracker.track_external(*parts)
    with tracker:
        for _ in range(N_STEPS):
            tracker.begin_step()
            step()
            tracker.reset_mod_stats()


def mlp_with_adam():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        x, y = torch.randn(256, 64), torch.randint(10, (256,))
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return (model, optimizer), step


class Transformer(nn.Module):
    def __init__(self, *, again=False):
        super().__init__()
        self.again = again
        self.words = nn.Embedding(100, 32)
        layer = {"d_model": 32, "nhead": 2, "dim_feedforward": 128, "batch_first": True}
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(**layer) for _ in range(3)])
        self.head = nn.Linear(32, 100)

    def forward(self, text):
        x = self.words(text)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


def transformer_with_adamw(*, again=False):
    model = Transformer(again=again)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        text = torch.randint(100, (8, 32))
        scores = model(text)
        functional.cross_entropy(scores.flatten(0, 1), text.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return (model, optimizer), step


def checkpointed_transformer():
    return transformer_with_adamw(again=True)


def convnet_with_momentum():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def step():
        x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return (model, optimizer), step


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 32)
        self.inner = nn.Linear(32, 32)
        self.head = nn.Linear(32, 500, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text):
        return self.head(torch.tanh(self.inner(self.words(text))))


def tied_embeddings():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        text = torch.randint(500, (8, 16))
        scores = model(text)
        functional.cross_entropy(scores.flatten(0, 1), text.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return (model, optimizer), step


def gan():
    maker = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 64))
    critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(), nn.Linear(128, 1))
    makers = torch.optim.Adam(maker.parameters())
    critics = torch.optim.RMSprop(critic.parameters())

    def step():
        real, fake = torch.randn(256, 64), maker(torch.randn(256, 16))
        loss = critic(fake.detach()).mean() - critic(real).mean()
        critics.zero_grad()
        loss.backward()
        critics.step()
        makers.zero_grad()
        (-critic(fake).mean()).backward()
        makers.step()

    return (maker, critic, makers, critics), step


PROGRAMS = [
    mlp_with_adam,
    transformer_with_adamw,
    convnet_with_momentum,
    tied_embeddings,
    checkpointed_transformer,
    gan,
]
