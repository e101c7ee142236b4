"""Checks that recording does not harm a program that trains in several threads at once.

    python benchmarks/soak_threads.py --device simulated --seconds 120 --tries 10
    .cache/standin/2.13.0/python benchmarks/soak_threads.py --device cuda --seconds 120 --tries 10

Each try is a process of its own: threads that each train a model of their own, with hooks on autograd's
threads, while one run is recorded. A try passes if the process ends by itself with status 0, and the bytes
in use at the end of the recording are those that torch counts (``memory_stats()`` on CUDA, the living
storages on the CPU).
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

_SPARE_S = 240
_alive: list[object] = []
"""What each thread still holds at its end, so that the final totals are not 0."""


def main() -> int:
    """Run all tries; return the number of those that failed."""
    options = _options()
    if options.child:
        return _try(options)
    failed = 0
    for number in range(options.tries):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--child", folder]
            for name in ("device", "seconds", "threads", "mode"):
                command += [f"--{name}", str(getattr(options, name))]
            status, said = _status(command, options.seconds + _SPARE_S)
        failed += status != 0
        print(f"try {number + 1}: status {status}; {said}", flush=True)
    print(
        f"{options.tries - failed} of {options.tries} tries without harm ({options.device}, {options.mode})"
    )
    return failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("simulated", "cuda"), default="simulated")
    parser.add_argument("--mode", choices=("events", "counters", "off"), default="events")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _status(command: list[str], limit_s: float) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"did not end within {limit_s:g} s"
    return done.returncode, (done.stdout or done.stderr[-2000:]).strip()


# ---------------------------------------------------------------------------------------- one try


def _try(options: argparse.Namespace) -> int:
    import torch

    import vramscope

    torch.set_num_threads(1)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    place = "cuda" if options.device == "cuda" else "cpu"
    recorder = None
    if options.mode != "off":
        # Without a device of its own counters need none.
        device = "auto" if options.mode == "counters" else options.device
        recorder = vramscope.record(options.child / "run", device=device, mode=options.mode, quiet=True)
    counts = [0] * options.threads
    errors: list[BaseException] = []
    ends_s = time.monotonic() + options.seconds

    def work(number: int) -> None:
        try:
            if recorder is None:
                _train(number, place, ends_s, counts)
            else:
                with recorder:
                    _train(number, place, ends_s, counts)
        except BaseException as error:  # noqa: BLE001 -- a thread's error would go unseen
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(options.threads)]
    if recorder is not None:
        recorder.__enter__()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    truth = _truth(place)
    if recorder is not None:
        recorder.__exit__(None, None, None)
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    is_equal = _compare(options, truth, sum(counts))
    return int(bool(errors) or not is_equal or not any(counts))


def _compare(options: argparse.Namespace, truth: list[int], n_steps: int) -> bool:
    """Print the bytes recorded at the end beside those counted; returns whether they are equal."""
    found = _found(options.child / "run") if options.mode == "events" else truth
    is_equal = found[: len(truth)] == truth
    living = {} if is_equal else _living(options.child / "run")
    print(json.dumps({"steps": n_steps, "truth": truth, "recorded": found} | living))
    return is_equal


def _train(number: int, place: str, ends_s: float, counts: list[int]) -> None:
    import torch
    from torch import nn

    seen = []
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(64))).to(place)
    model[0].register_full_backward_hook(lambda *_: seen.append(len(seen)))
    model[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.numel()))
    optimizer = torch.optim.AdamW(model.parameters()) if number % 2 else None
    kept = []
    while time.monotonic() < ends_s or not counts[number]:  # on a busy machine a step may take seconds
        x = torch.ones(4, 8, device=place)
        if number % 4 == 3:
            y = torch.utils.checkpoint.checkpoint(model[2:], model[:2](x), use_reentrant=False)
        else:
            y = model(x)
        y.sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        else:
            for parameter in model.parameters():
                parameter.data.sub_(parameter.grad, alpha=1e-3)
                parameter.grad = None
        kept = [*kept[-3:], torch.zeros(128, device=place)]
        seen.clear()
        counts[number] += 1
    _alive.append((model, optimizer, kept))


def _truth(place: str) -> list[int]:
    """Return the requested bytes now; on CUDA also the allocated and reserved ones."""
    import torch

    gc.collect()
    if place == "cuda":
        stats = torch.cuda.memory_stats()
        return [stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "reserved")]
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    found[storage._cdata] = storage.nbytes()
    return [sum(found.values())]


def _found(path: Path) -> list[int]:
    import vramscope

    (recording,) = vramscope.load(path).recordings
    line = recording.timeline()
    return [int(getattr(line, f"{name}_bytes")[-1]) for name in ("requested", "allocated", "reserved")]


def _living(path: Path) -> dict[str, Any]:
    """Return the blocks that live at the end by size and line, and what the recording notes."""
    import vramscope

    (recording,) = vramscope.load(path).recordings
    lives = recording.lifetimes()
    lives = lives.rows(lives.free_event == -1)
    counted: Counter[str] = Counter()
    for size, stack in zip(lives.size.tolist(), lives.stack_id.tolist(), strict=True):
        frames = recording.stacks.frames(stack)
        mine = [f"{frame.function}:{frame.line}" for frame in frames if frame.file == __file__]
        counted[f"{size} B, {frames[0].function if frames else '?'} < {mine[0] if mine else '?'}"] += 1
    return {"notes": [note.text for note in recording.notes], "living": dict(counted.most_common(40))}


if __name__ == "__main__":
    # Of our own code beside this file, wherever it is started.
    sys.path.append(os.fspath(Path(__file__).parents[1]))
    sys.exit(main())
