"""Six workloads under five settings of the allocator.

``FOLDER/NAME-default`` is the recording, ``FOLDER/NAME-SETTING.json`` what torch itself reported; the same
for ``NAME-tight`` and ``NAME-close`` on devices that are too small for some of the settings.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from children import Work

import vramscope

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "roundup": "roundup_power2_divisions:4",
    "split": "max_split_size_mb:64",
    "large": "large_segment_size_mb:64",
}
LIMITS = {"lengths": 0.009, "sizes": 0.005}
"""Fractions of the device: the runs reserve more if nothing stops them, so garbage is collected."""
LIMIT = "per_process_memory_fraction:{},garbage_collection_threshold:0.6"
NAMES = ("fixed", "lengths", "deep", "accumulated", "kept", "sizes")
ROOM_MIB = {
    "tight": {"fixed": 451, "lengths": 483, "deep": 244, "accumulated": 337, "kept": 237, "sizes": 402},
    "close": {"fixed": 497, "lengths": 543, "deep": 256, "accumulated": 369, "kept": 295, "sizes": 442},
}
"""For the allocator: under some settings it releases its cache and goes on, under others memory runs out."""
EMPTIED = {"step": 1, "epoch": 4}
"""After how many steps ``empty_cache`` is called, in runs of their own."""
CONTEXT_MIB = 500
steps_done: list[int] = []
"""One entry for each optimizer step of the training that runs."""
on_step_end: list[Callable[[], None]] = []


def cases(folder: Path) -> Iterator[tuple[str, Work, dict[str, str]]]:
    """Each finds an allocator that has done nothing yet."""
    for setting, conf in SETTINGS.items():
        environment = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        for name in NAMES:
            case = folder / f"{name}-{setting}"
            yield case.name, partial(run, case, name, setting == "default"), environment
            for size, room in ROOM_MIB.items():
                case = folder / f"{name}-{size}-{setting}"
                small = {"STANDIN_TOTAL_MIB": str(CONTEXT_MIB + room[name])}
                is_recorded = (size, setting) == ("tight", "default")
                yield case.name, partial(run, case, name, is_recorded), environment | small
    for name, limit in LIMITS.items():
        case = folder / f"{name}-limited"
        environment = {"PYTORCH_CUDA_ALLOC_CONF": LIMIT.format(limit)}
        yield case.name, partial(run, case, name, False), environment
    for name in ("lengths", "accumulated"):
        for word, n_steps in EMPTIED.items():
            case = folder / f"{name}-emptied-{word}"
            yield case.name, partial(run, case, name, False, n_steps), {}
    yield "even-default", partial(run, folder / "even-default", "even", True), {}


def run(case: Path, name: str, is_recorded: bool, n_steps: int = 0) -> None:
    torch.backends.cudnn.enabled = False
    if n_steps:
        on_step_end.append(lambda: None if len(steps_done) % n_steps else torch.cuda.empty_cache())
    with suppress(torch.OutOfMemoryError):
        if not is_recorded:
            globals()[name](random.Random(3))
        else:
            with vramscope.record(case, quiet=True) as recorder:
                on_step_end.append(partial(mark_epochs, recorder))
                globals()[name](random.Random(3))
    stats = torch.cuda.memory_stats()
    said = {
        "room": torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved(),
        "total": torch.cuda.get_device_properties(0).total_memory,
        "allocations": stats["allocation.all.allocated"],
        "steps": len(steps_done),
        "reserved": torch.cuda.max_memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "segments": stats["num_device_alloc"],
    }
    case.with_name(f"{case.name}.json").write_text(json.dumps(said))


def mark_epochs(recorder) -> None:
    if not len(steps_done) % EMPTIED["epoch"]:
        recorder.mark(f"epoch {len(steps_done) // EMPTIED['epoch']}")


def trained(widths, batches, micro: int = 1):
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU()))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        for _ in range(micro):
            model(torch.randn(batch, widths[0], device="cuda")).square().mean().backward()
        optimizer.step()
        steps_done.append(batch)
        optimizer.zero_grad()
        for each in on_step_end:
            each()


def fixed(_):
    trained([1024, 4096, 1024], [4096] * 5)


def lengths(dice):
    trained([512, 2048, 2048, 512], [dice.randrange(300, 6000) for _ in range(16)])


def deep(dice):
    trained([384] * 14, [dice.randrange(500, 3000) for _ in range(10)])


def accumulated(dice):
    trained([768, 3072, 768], [dice.randrange(500, 4000) for _ in range(8)], micro=3)


def kept(dice):
    """Results of every step stay among what comes and goes."""
    small = []
    for _ in range(20):
        large = [torch.empty(dice.randrange(1, 30) << 20, dtype=torch.uint8, device="cuda") for _ in range(9)]
        small.append(torch.empty(dice.randrange(1, 4) << 20, dtype=torch.uint8, device="cuda"))
        del large


def sizes(dice):
    """Everything comes and goes, in all sizes."""
    held = []
    for _ in range(1500):
        if held and dice.random() < 0.48:
            held.pop(dice.randrange(len(held)))
        else:
            n_bytes = int(2 ** dice.uniform(9, 26))
            held.append(torch.empty(n_bytes, dtype=torch.uint8, device="cuda"))


def even(_):
    """Blocks of one size, as many as there were."""
    for _ in range(40):
        held = [torch.empty(32 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
        del held
