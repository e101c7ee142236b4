"""Twelve trainings, small, each with something that makes memory hard to follow."""

import os
import random

import torch
from probe import Probe
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


class Block(nn.Module):
    """Attention written out, so that no kernel of another machine changes what is allocated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2), dim=-1)
        x = x + self.out(weights @ value)
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(
        self, probe: Probe, width: int = 128, n_blocks: int = 3, *, reentrant: bool | None = None
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 500)
        self._probe = [probe]
        self._reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x) if self._reentrant is None else self._checkpointed(block, x)
        return self.head(x)

    def _checkpointed(self, block: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(self._run, block, x, use_reentrant=self._reentrant)

    def _run(self, block: nn.Module, x: Tensor) -> Tensor:
        inside = torch._C._current_graph_task_id() != -1
        return self._probe[0].call(block, x) if inside else block(x)


def tokens(n_rows: int = 8, length: int = 48) -> Tensor:
    return torch.randint(500, (n_rows, length), device="cuda")


def loss_of(result: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(result.flatten(0, 1), wanted.flatten())


def prepared(probe: Probe, **options) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = probe.watch(Model(probe, **options).cuda())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(probe: Probe, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    result = probe.call(model, batch)
    loss = loss_of(result, batch)
    probe.at("loss")
    del result
    probe.backward(loss)
    probe.optimize(optimizer)


def transformer(probe: Probe) -> None:
    with probe.recording():
        model, optimizer = prepared(probe)
        for _ in range(4):
            with probe.step():
                train(probe, model, optimizer, tokens())
        probe.snapshot()


def varlen(probe: Probe) -> None:
    draw = random.Random(1)
    with probe.recording():
        model, optimizer = prepared(probe)
        for number in range(6):
            with probe.step():
                train(probe, model, optimizer, tokens(draw.randint(1, 12), draw.randint(5, 300)))
            if number % 2:
                probe.snapshot()


def checkpointing(probe: Probe) -> None:
    with probe.recording():
        for reentrant in (False, True):
            model, optimizer = prepared(probe, reentrant=reentrant)
            for _ in range(2):
                with probe.step():
                    train(probe, model, optimizer, tokens(16, 96))
            probe.snapshot()


def amp(probe: Probe) -> None:
    with probe.recording():
        model, optimizer = prepared(probe)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(4):
            with probe.step():
                batch = tokens()
                with torch.autocast("cuda", dtype=torch.float16):
                    result = probe.call(model, batch)
                    loss = loss_of(result, batch)
                probe.backward(scaler.scale(loss))
                probe.optimize(optimizer, scaler)


def accumulation(probe: Probe) -> None:
    with probe.recording():
        model, optimizer = prepared(probe)
        for _ in range(3):
            with probe.step():
                for length in (20, 60, 40):
                    batch = tokens(4, length)
                    probe.backward(loss_of(probe.call(model, batch), batch) / 3)
                probe.optimize(optimizer)
        probe.snapshot()


def gan(probe: Probe) -> None:
    with probe.recording():
        generator = probe.watch(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256)).cuda())
        critic = probe.watch(nn.Sequential(nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 1)).cuda())
        of_generator = torch.optim.Adam(generator.parameters())
        of_critic = torch.optim.RMSprop(critic.parameters())
        for _ in range(8):
            with probe.step():
                noise = torch.randn(32, 64, device="cuda")
                made = probe.call(generator, noise)
                judged = probe.call(critic, made.detach())
                real = probe.call(critic, torch.randn(32, 256, device="cuda"))
                probe.backward(judged.mean() - real.mean())
                probe.optimize(of_critic)
                probe.backward(-probe.call(critic, made).mean())
                probe.optimize(of_generator)
        probe.snapshot()


def streams(probe: Probe) -> None:
    """Blocks freed while another stream may still use them come back late."""
    draw = random.Random(2)
    with probe.recording():
        others = [torch.cuda.Stream() for _ in range(3)]
        kept: list[Tensor] = []
        model, optimizer = prepared(probe, n_blocks=1)
        for number in range(6):
            with probe.step():
                for _ in range(15):
                    stream = draw.choice(others)
                    with torch.cuda.stream(stream):
                        made = torch.empty(draw.randint(1, 6 * MIB), dtype=torch.uint8, device="cuda")
                    made.record_stream(draw.choice(others))
                    made.record_stream(torch.cuda.current_stream())
                    probe.see(made)
                    probe.at("made")
                    kept.append(made)
                    del made
                    del kept[: max(0, len(kept) - 4)]
                    probe.at("let go")
                train(probe, model, optimizer, tokens(4, 20))
            if number % 2:
                probe.snapshot()


def pools(probe: Probe) -> None:
    """A pool of the program's own, and that of a captured graph."""
    with probe.recording():
        model, optimizer = prepared(probe, n_blocks=2)
        pool = torch.cuda.MemPool()
        kept = []
        for number in range(5):
            with probe.step():
                with torch.cuda.use_mem_pool(pool):
                    kept.append(torch.empty((number + 1) * 700_000, device="cuda"))
                    probe.at("in the pool")
                kept = kept[-2:]
                train(probe, model, optimizer, tokens())
        still = torch.ones(64, 128, 128, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.graph(graph):
            captured = model.blocks[0](still)
        graph.replay()
        probe.see(captured)
        probe.snapshot()
        with probe.step():
            train(probe, model, optimizer, tokens())


def pressure(probe: Probe) -> None:
    """More is asked for than is free, so that the cache is given back and asked again; at last in vain."""
    draw = random.Random(3)
    if "STANDIN_TOTAL_MIB" not in os.environ:  # a real device has too much
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(400 * MIB / total)
    with probe.recording():
        model, optimizer = prepared(probe, n_blocks=1)
        for number in range(10):
            with probe.step():
                kept = []
                for _ in range(12):
                    n_bytes = (draw.randint(10, 16) + 3 * number) * MIB
                    kept.append(torch.empty(n_bytes, dtype=torch.uint8, device="cuda"))
                    probe.see(kept[-1])
                    probe.at("asked")
                    if len(kept) > 5:
                        del kept[draw.randrange(len(kept))]
                        probe.at("let go")
                train(probe, model, optimizer, tokens(4, 20))
                kept.clear()
            if number % 3 == 0:
                probe.snapshot()
        try:
            torch.empty(8 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            probe.at("refused")
        with probe.step():
            train(probe, model, optimizer, tokens(4, 20))


def expandable(probe: Probe) -> None:
    draw = random.Random(4)
    with probe.recording():
        model, optimizer = prepared(probe)
        for number in range(6):
            with probe.step():
                train(probe, model, optimizer, tokens(draw.randint(1, 12), draw.randint(5, 400)))
            if number % 2:
                probe.snapshot()
        held = [torch.empty(draw.randint(1, 30) * MIB, dtype=torch.uint8, device="cuda") for _ in range(9)]
        del held[::2]
        probe.at("before empty_cache")
        torch.cuda.empty_cache()
        probe.snapshot()
        with probe.step():
            train(probe, model, optimizer, tokens())


def empty_cache(probe: Probe) -> None:
    draw = random.Random(5)
    with probe.recording():
        model, optimizer = prepared(probe)
        for number in range(9):
            with probe.step():
                train(probe, model, optimizer, tokens(draw.randint(4, 12), draw.randint(20, 200)))
            if number % 3 == 2:
                torch.cuda.empty_cache()
                probe.at("emptied")
                probe.snapshot()


def late(probe: Probe) -> None:
    """Recording starts when blocks are live, cached and half split, and one is waiting for a stream."""
    model, optimizer = prepared(probe)
    older = [torch.empty(n * 300_000, dtype=torch.uint8, device="cuda") for n in range(1, 30)]
    for _ in range(3):
        train(probe, model, optimizer, tokens(12, 100))
    del older[::3]
    probe.points.clear()
    probe.phases.clear()
    with probe.recording():
        probe.snapshot()
        for _ in range(4):
            with probe.step():
                train(probe, model, optimizer, tokens())
                del older[::5]
                probe.at("older go")
        older.clear()
        probe.snapshot()
