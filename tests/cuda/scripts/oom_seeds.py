"""Ways to run out of memory, recorded into ``FOLDER/NAME``; torch's message is in ``FOLDER/NAME.json``."""

import ctypes
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from children import Work, cuda_runtime

import vramscope
from vramscope.capture.samples import Sampler

MIB = 1 << 20
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
Kept = list[object]
ASKED = threading.Semaphore(0)
"""Released when the driver has been asked."""
IS_OVER = threading.Event()
"""Set when the driver is asked no more."""
ask = Sampler._sample


def ask_and_say(sampler: Sampler) -> None:
    if not IS_OVER.is_set():
        ask(sampler)
        ASKED.release()


def take(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def sampled() -> None:
    """Wait until the driver has been asked from beginning to end: the second time began after this call."""
    while ASKED.acquire(blocking=False):
        pass
    for _ in range(2):
        assert ASKED.acquire(timeout=60)


def capacity(kept: Kept) -> None:
    sampled()
    while True:
        kept.append(take(100))


def oversize(kept: Kept) -> None:
    kept.append(take(100))
    sampled()
    take(1600)


def fragmentation(kept: Kept) -> None:
    """Segments of 20 MiB with 15 and 5 each; the 15 go: three quarters of everything is free, in pieces."""
    pairs = [(take(7), take(2)) for _ in range(140)]
    kept += [pair[1] for pair in pairs]
    del pairs
    sampled()
    take(900)


def other_process(kept: Kept) -> None:
    capacity(kept)


def private_pool(kept: Kept) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        graph = [take(100) for _ in range(10)]
        del graph
    kept.append(take(200))
    sampled()
    take(500)


def leak(kept: Kept) -> None:
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampled()
    while True:
        out = model(torch.randn(8192, 1024, device="cuda"))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out.detach())


def non_torch_growth(kept: Kept) -> None:
    runtime = cuda_runtime()
    kept.append(take(100))
    sampled()
    assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(700 * MIB)) == 0
    sampled()
    while True:
        kept.append(take(100))


def outside_torch(kept: Kept) -> None:
    """Grow outside of torch as before, unseen by any sample: it may as well be another process."""
    kept.append(take(100))
    sampled()
    IS_OVER.set()
    assert cuda_runtime().cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(700 * MIB)) == 0
    while True:
        kept.append(take(100))


def backward(kept: Kept) -> None:
    weight = torch.empty(550 * MIB // 4, device="cuda", requires_grad=True)
    sampled()
    kept.append(loss := weight.exp().sum())
    loss.backward()


SEEDS = (
    capacity,
    oversize,
    fragmentation,
    other_process,
    private_pool,
    leak,
    non_torch_growth,
    outside_torch,
)


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    small = {"STANDIN_TOTAL_MIB": "2048"}
    for seed in SEEDS:
        yield seed.__name__, partial(run, folder / seed.__name__, seed), small
    yield "backward", partial(run, folder / "backward", backward), small
    for seed in (capacity, fragmentation):
        name = f"{seed.__name__}-expandable"
        yield name, partial(run, folder / name, seed), small | EXPANDABLE


def run(path: Path, seed: Callable[[Kept], None]) -> None:
    if seed is other_process:
        import standin

        standin.Board().add_process(1 << 30)
    Sampler._sample = ask_and_say  # type: ignore[method-assign]
    take(1)
    kept: Kept = []
    try:
        with vramscope.record(path, quiet=True):
            seed(kept)
    except torch.OutOfMemoryError as error:
        path.with_name(f"{path.name}.json").write_text(json.dumps(str(error)))
        own = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == __file__]
        path.with_name(f"{path.name}.line").write_text(str(own[-1]))
