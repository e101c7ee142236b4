"""Write a snapshot like that of torch's ``_dump_snapshot``, for a program that never ran.

A simulated transformer trains for as many steps as the requested number of events needs. Our model of the
caching allocator serves it, so addresses, splits, segments and the final state agree with the trace. The same
arguments give the same file.

    python benchmarks/generate.py --events 1000000 OUT.pickle
"""

import argparse
import gc
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vramscope.allocator.settings import Settings, TieBreak
from vramscope.allocator.simulation import CachingAllocator
from vramscope.model.snapshot import BlockState, Snapshot
from vramscope.model.trace import Action

MIB = 1024 * 1024
N_LAYERS = 24
WIDTH = 1024
_BEGAN_US = 1_700_000_000_000_000
_COMMUNICATION_STREAM = 94_000_000_000_000
_NAMES = {action: action.name.lower() for action in Action}
_STATES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING_FREE: "active_pending_free",
    BlockState.INACTIVE: "inactive",
}
_SAVED = ("norm", "query", "key", "value", "scores", "attended", "up", "gelu")
_PASSING = ("rope", "mask", "softmax_out", "dropped")
_WIDTHS = {"scores": 2, "up": 4, "gelu": 4, "mask": 1}

Frames = list[dict[str, Any]]


class CallStacks:
    """Frames as torch makes them: one dict per place in the program, a new list for every call.

    So it is in torch's files: 665 dicts and 14,961 lists in one of 22,331 events.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._known: dict[tuple[str, int, str], Frames] = {}

    def of(self, phase: str, layer: int, op: str) -> Frames:
        """The stack of one call, innermost frame first."""
        key = (phase, layer, op)
        if key not in self._known:
            self._known[key] = self._made(*key)
        return list(self._known[key])

    def _made(self, phase: str, layer: int, op: str) -> Frames:
        inner = [(f"at::native::{op}(at::Tensor const&)", "??", 0)]
        inner += [(f"c10::impl::call_{op}_{i}", "??", 0) for i in range(8)]
        inner += [
            (op, f"/opt/model/{phase}.py", 20 + len(op) * 3),
            ("forward", "/opt/model/block.py", 40 + layer),
        ]
        outer = [("_call_impl", "/opt/torch/nn/modules/module.py", 1780 + i % 3) for i in range(9)]
        outer += [(f"{phase}_layer", "/opt/model/transformer.py", 100 + layer)]
        outer += [(f"run_{i}", "/opt/launcher/main.py", 10 + i) for i in range(6 + layer % 5)]
        outer += [(phase, "/home/user/train.py", 30), ("<module>", "/home/user/train.py", 70)]
        return [self._place(*place) for place in inner + outer]

    def _place(self, name: str, filename: str, line: int) -> dict[str, Any]:
        key = (name, filename, line)
        return self._places.setdefault(key, {"name": name, "filename": filename, "line": line})


class DeviceProgram:
    """The requests to one device's allocator, and what torch would record of them."""

    def __init__(self, device: int, seed: int, stacks: CallStacks) -> None:
        self.device = device
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self._random = random.Random(seed * 1000 + device)
        self._stacks = stacks
        self._contexts: list[Frames] = [[]]
        self._context: Frames = []
        self._clock = _BEGAN_US + device
        self._settings = Settings(tie_break=TieBreak.ADDRESS)
        self._allocator = CachingAllocator(self._settings, emit=self._emit)
        self._place = ("setup", 0)
        self._leaked: list[int] = []

    def train(self, n_events: int, leak_bytes: int = 0) -> None:
        """Run steps until there are at least *n_events* entries; stops between two operations."""
        steps = self._steps(leak_bytes)
        while len(self.entries) < n_events:
            next(steps)

    def _emit(self, action: Action, address: int, size: int, _block: int, stream: int, _pool: int) -> None:
        self._clock += 1 + (address >> 9) % 7
        self.entries.append(
            {
                "action": _NAMES[action],
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": self._clock,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": self._context,
            }
        )

    def _malloc(self, size: int, op: str, stream: int = 0) -> int:
        self._context = self._stacks.of(*self._place, op)
        self._contexts.append(self._context)
        return self._allocator.malloc(size, stream, stack_id=len(self._contexts) - 1)

    def _free(self, address: int, op: str) -> None:
        self._context = self._stacks.of(*self._place, op)
        self._allocator.free(address)

    def _mark(self, stage: str, name: str) -> None:
        self.annotations.append({"stage": stage, "name": name, "device": self.device, "time_us": self._clock})

    # Generators: each yield is a place where the program may be stopped.

    def _steps(self, leak_bytes: int) -> Any:
        weights = [self._malloc(WIDTH * WIDTH * n, "parameter") for n in (4, 4, 4, 4, 16, 16) * N_LAYERS]
        yield
        states = None
        while True:
            n_tokens = self._random.choice((512, 768, 1000, 1536, 2048, 3000))
            saved = yield from self._forward(n_tokens)
            if leak_bytes:
                self._place = ("forward", 0)
                self._leaked.append(self._malloc(leak_bytes, "append_to_history"))
            gradients = yield from self._backward(saved)
            states = states or [self._malloc(WIDTH * WIDTH * 8, "adam_state") for _ in weights]
            yield from self._optimizer(gradients)
            if self._random.random() < 0.05:  # as some loops do before they evaluate
                self._context = self._stacks.of("evaluate", 0, "empty_cache")
                self._allocator.empty_cache()
                yield

    def _forward(self, n_tokens: int) -> Any:
        saved: list[list[int]] = []
        for layer in range(N_LAYERS):
            self._place = ("forward", layer)
            passing = []
            saved.append([])
            for op in _SAVED:
                saved[-1].append(self._malloc(n_tokens * WIDTH * _WIDTHS.get(op, 1) * 2, op))
                yield
            for op in _PASSING:
                passing.append(
                    self._malloc(n_tokens * _WIDTHS.get(op, 3) * self._random.randint(40, 2000), op)
                )
                yield
            yield from self._gather(passing)
        return saved

    def _gather(self, passing: list[int]) -> Any:
        """A collective on a stream of its own: its buffer is pending until the stream is done with it."""
        buffer = self._malloc(WIDTH * WIDTH * 2, "all_gather", _COMMUNICATION_STREAM)
        self._allocator.record_stream(buffer, 0)
        self._free(buffer, "all_gather")
        for address in passing:
            self._free(address, "release")
            yield
        self._allocator.finish_events()
        yield

    def _backward(self, saved: list[list[int]]) -> Any:
        gradients = []
        for layer in reversed(range(N_LAYERS)):
            self._place = ("backward", layer)
            for n in (4, 4, 4, 4, 16, 16):
                gradients.append(self._malloc(WIDTH * WIDTH * n, "grad_weight"))
                yield
            for address in reversed(saved.pop()):
                passing = self._malloc(self._random.randint(1, 64) * 96_000, "grad_input")
                self._free(address, "saved_tensor")
                self._free(passing, "grad_input")
                yield
        return gradients

    def _optimizer(self, gradients: Sequence[int]) -> Any:
        self._place = ("optimizer", 0)
        self._mark("START", "Optimizer.step#AdamW.step")
        for _ in gradients:
            scratch = self._malloc(WIDTH * WIDTH * 4, "denominator")
            scalar = self._malloc(4, "bias_correction")
            self._free(scratch, "denominator")
            self._free(scalar, "bias_correction")
            yield
        self._mark("END", "Optimizer.step#AdamW.step")
        self._mark("START", "Optimizer.zero_grad#AdamW.zero_grad")
        for address in gradients:
            self._free(address, "zero_grad")
            yield
        self._mark("END", "Optimizer.zero_grad#AdamW.zero_grad")

    def segments(self) -> list[dict[str, Any]]:
        """Return the final state in torch's format."""
        state = self._allocator.snapshot(len(self.entries), self._clock * 1000)
        found = [self._segment(state, row) for row in range(len(state.segments))]
        columns = [column.tolist() for _, column in state.blocks.columns()]
        for segment, address, size, requested, block_state, stack in zip(*columns, strict=True):
            found[segment]["blocks"].append(
                {
                    "address": address,
                    "size": size,
                    "requested_size": requested,
                    "state": _STATES[BlockState(block_state)],
                    "frames": self._contexts[stack] if stack else [],
                }
            )
        for segment in found:
            _add_totals(segment)
        return found

    def _segment(self, state: Snapshot, row: int) -> dict[str, Any]:
        known = state.segments
        return {
            "device": self.device,
            "address": int(known.address[row]),
            "total_size": int(known.size[row]),
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": int(known.stream[row]),
            "segment_type": "large" if known.is_large[row] else "small",
            "segment_pool_id": (0, 0),
            "is_expandable": bool(known.is_expandable[row]),
            "frames": [],
            "blocks": [],
        }


def _add_totals(segment: dict[str, Any]) -> None:
    for block in segment["blocks"]:
        if block["state"] != "inactive":
            segment["active_size"] += block["size"]
            segment["requested_size"] += block["requested_size"]
        if block["state"] == "active_allocated":
            segment["allocated_size"] += block["size"]


def snapshot(n_events: int, *, n_devices: int = 1, leak_bytes: int = 0, seed: int = 0) -> dict[str, Any]:
    """Return a dict like ``torch.cuda.memory._snapshot()`` (2.11), with at least *n_events* in all."""
    stacks = CallStacks()
    programs = [DeviceProgram(device, seed, stacks) for device in range(n_devices)]
    for program in programs:
        program.train(-(-n_events // n_devices), leak_bytes)
    return {
        "segments": [segment for program in programs for segment in program.segments()],
        "device_traces": [program.entries for program in programs],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": False,
            "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
        },
        "external_annotations": [mark for program in programs for mark in program.annotations],
    }


def main(arguments: Sequence[str] | None = None, say: Callable[[str], Any] = print) -> int:
    """Write one file."""
    parser = argparse.ArgumentParser(description="Write a synthetic torch memory snapshot.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--leak", type=int, default=0, metavar="BYTES", help="kept of every step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("path", type=Path)
    asked = parser.parse_args(arguments)
    gc.disable()  # millions of containers, none of them garbage
    made = snapshot(asked.events, n_devices=asked.devices, leak_bytes=asked.leak, seed=asked.seed)
    with asked.path.open("wb") as file:
        pickle.dump(made, file, protocol=4)
    n_events = sum(len(trace) for trace in made["device_traces"])
    say(f"{asked.path}: {n_events} events, {asked.path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
