"""One variant of ``overhead.py`` in a process of its own: blocks of steps without and with it alternate.

    python benchmarks/_overhead_child.py '{"variant": "events", "pairs": 5, …}'

Prints one JSON object.
"""

import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DEPTH = 25
"""Number of Python frames above an allocation, as in a real training."""

BOUNDARIES = 8
"""Begins and ends of forward, backward, optimizer and zero_grad, in a step."""
STEPS_BEFORE = 3
"""Steps of each block that are not measured: ``every=`` has events in the first two."""

Context = Callable[[Path], AbstractContextManager[Any]]


class Block(nn.Module):
    """One block of a transformer with attention written out: the same operators on every machine."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention, then the two linear layers."""
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value)
        return x + self.down(torch.relu(self.up(x)))


class Training:
    """A transformer with its optimizer."""

    def __init__(self, device: str, width: int, n_blocks: int, batch: tuple[int, int]) -> None:
        self.model = nn.Sequential(*(Block(width) for _ in range(n_blocks))).to(device)
        self._optimizer = torch.optim.AdamW(self.model.parameters())
        self._shape = (*batch, width)
        self._device = device

    def step(self) -> None:
        """Run one training step."""
        self.model(torch.randn(self._shape, device=self._device)).pow(2).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Return seconds per step without and with the variant, in pairs; its start and end; host memory."""
    device = asked["device"]
    training = Training(device, asked["width"], asked["blocks"], tuple(asked["batch"]))
    context = _variant(asked["variant"], training.model)
    names = ("off", "on", "off_cpu", "on_cpu", "worst", "enter", "leave")
    found: dict[str, Any] = {name: [] for name in names}
    folder = Path(tempfile.mkdtemp(prefix="vramscope-overhead-"))
    try:
        _steps(training, device, 5)
        with context(
            folder / "first"
        ):  # imports, first use: once in a process, reported as nothing of a step
            _steps(training, device, 3)
        before = _resident()
        for number in range(asked["pairs"]):
            cpu = time.process_time()
            off = _steps(training, device, asked["steps"])
            found["off_cpu"].append((time.process_time() - cpu) / len(off))
            start = time.perf_counter()
            with context(folder / str(number)):
                entered = time.perf_counter()
                _steps(training, device, STEPS_BEFORE)
                cpu = time.process_time()
                on = _steps(training, device, asked["steps"])
                found["on_cpu"].append((time.process_time() - cpu) / len(on))
                leaving = time.perf_counter()
            found["leave"].append(time.perf_counter() - leaving)
            found["enter"].append(entered - start)
            found["off"].append(sum(off) / len(off))
            found["on"].append(sum(on) / len(on))
            found["worst"].append(max(on))
        found["host_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        found["per_event_us"] = _per_event(context, folder, device, asked["events"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _steps(training: Training, device: str, n: int) -> list[float]:
    """Return the seconds of each step; each waits for the device at its end, with and without us alike."""
    found = []
    for _ in range(n):
        start = time.perf_counter()
        training.step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found


def _per_event(context: Context, folder: Path, device: str, n_events: int) -> dict[str, float]:
    """Return microseconds of CPU per allocator event: while it happens, and to write it at the end.

    An allocation and its free are three events: made, free asked for, free done.
    """
    n_pairs = n_events // 3
    _deep(DEPTH, n_pairs // 10, device)
    found = []
    for number in range(3):
        start = time.process_time()
        _deep(DEPTH, n_pairs, device)
        off = time.process_time() - start
        with context(folder / f"events-{number}"):
            start = time.process_time()
            _deep(DEPTH, n_pairs, device)
            on = time.process_time() - start
            start = time.process_time()
        found.append((on - off, time.process_time() - start))
    recording, leaving = (sorted(values)[1] / (3 * n_pairs) * 1e6 for values in zip(*found, strict=True))
    return {"recording": recording, "leaving": leaving}


def _deep(depth: int, n: int, device: str) -> None:
    if depth:
        _deep(depth - 1, n, device)
        return
    for _ in range(n):
        torch.empty(1000, device=device)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


# -------------------------------------------------------------------------------------- the variants


def _variant(name: str, model: nn.Module) -> Context:
    if name == "traceml":
        return _traceml(model)
    return {
        "off": lambda _: nullcontext(),
        "counters": _counters,
        "events": _events,
        "torch peaks": _peaks,
        "every=100": partial(_events, every=100),
        "every=10": partial(_events, every=10),
        "every=auto": partial(_events, every="auto"),
        "torch history": _history,
        "torch profiler": _profiler,
    }[name]


def _events(directory: Path, **options: Any) -> AbstractContextManager[Any]:
    import vramscope

    return vramscope.record(directory, quiet=True, **options)


def _counters(directory: Path) -> AbstractContextManager[Any]:
    import vramscope

    return vramscope.record(directory, mode="counters", quiet=True)  # type: ignore[call-arg]


@contextmanager
def _peaks(_: Path) -> Iterator[None]:
    """Read torch's statistics and reset its peaks as often as a step has boundaries."""
    original, device = Training.step, torch.cuda.current_device()

    def step(training: Training) -> None:
        original(training)
        for _ in range(BOUNDARIES):
            torch._C._cuda_memoryStats(device)
            torch._C._cuda_resetPeakMemoryStats(device)

    Training.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        Training.step = original  # type: ignore[method-assign]


@contextmanager
def _history(_: Path) -> Iterator[None]:
    """Record torch's own history with the same settings and Python stacks, and take the snapshot."""
    torch.cuda.memory._record_memory_history(max_entries=250_000, stacks="python")
    try:
        yield
        torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _profiler(_: Path) -> AbstractContextManager[Any]:
    return torch.profiler.profile(profile_memory=True, with_stack=False)


def _traceml(model: nn.Module) -> Context:
    """Wrap every step in TraceML's own step."""
    import traceml_ai

    traceml_ai.init()
    original = Training.step

    @contextmanager
    def context(_: Path) -> Iterator[None]:
        def step(training: Training) -> None:
            with traceml_ai.trace_step(model):
                original(training)

        Training.step = step  # type: ignore[method-assign]
        try:
            yield
        finally:
            Training.step = original  # type: ignore[method-assign]

    return context


def main() -> None:
    """Measure the requested variant."""
    asked = json.loads(sys.argv[1])
    sys.stdin.readline()  # another measurement may be going on until then
    sys.path.extend(asked["path"])  # last, so that a peer's NumPy replaces none
    if asked["device"] == "cuda":
        torch.backends.cudnn.enabled = torch.cuda.get_device_name() != "Stand-in GPU 0"
    torch.manual_seed(0)
    found = measured(asked)
    print(json.dumps(found), flush=True)
    time.sleep(0.3)  # torch aborts at exit while autograd's thread still lets go of its last backward


if __name__ == "__main__":
    main()
