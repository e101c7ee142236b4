"""What torch itself says of its memory, noted in the middle of a workload together with where that was.

Where: the allocator's own counts of allocations, frees asked for and frees done. Events of the same kinds
counted in a trace lead to the same moment, with no clock involved.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

QUANTITIES = ("allocated", "active", "reserved", "requested")
COUNTS = (
    "allocation.all.allocated",
    "allocation.all.freed",
    "active.all.freed",
    "segment.all.allocated",
    "segment.all.freed",
)
_SHARE_OF_OPERATIONS = 0.2


class Probe:
    """One workload under observation.

    *directory*: record there; None runs the workload without us. *resets*: read and reset torch's peaks at
    every boundary of a step or phase, which is the truth for the peaks (in a run that is not recorded).
    """

    def __init__(self, directory: Path | None, *, resets: bool, seed: int = 0) -> None:
        self._directory = directory
        self._resets = resets
        self._draw = random.Random(seed)
        self._open: list[list[int]] = []
        self._n_steps = 0
        self._greatest = 0
        self._pointers = hashlib.sha256()
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.points: list[dict[str, Any]] = []
        self.snapshots: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.phases: dict[str, int] = {}
        self.greatest: list[int] = []
        self.random_states: list[str] = []
        self.losses: list[float] = []

    # ---------------------------------------------------------------------------- what workloads call

    @contextmanager
    def recording(self, **options: Any) -> Iterator[None]:
        """Everything that is to be recorded."""
        self.first = moment()
        with self._recorder(**options), _Operations(self._sometimes):
            yield
            self.at("end")
            self.snapshot()
        self.last = moment()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step, which is one entry of ``record()``."""
        with self._recorder(), self._interval() as found:
            yield
        self.steps.append(found[0])
        self._n_steps += 1
        self._read_peak()
        self.greatest.append(self._greatest)
        self.random_states.append(_digest(torch.get_rng_state(), torch.cuda.get_rng_state()))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A stretch that the recorder has to find by itself: nothing tells it."""
        found = [0]
        try:  # a recompute may be stopped by an exception
            with self._interval() as found:
                yield
        finally:
            key = f"{self._n_steps} {name}"
            self.phases[key] = max(self.phases.get(key, 0), found[0])

    def at(self, where: str) -> None:
        """Note torch's counters here."""
        is_main = threading.current_thread() is threading.main_thread()
        self.points.append({"where": where, "on_main_thread": is_main, **moment()})

    def snapshot(self) -> None:
        """Note torch's segments and blocks here."""
        if self._directory is not None:
            self.snapshots.append({"segments": segments(), **moment()})

    def see(self, *tensors: torch.Tensor) -> None:
        """Remember the addresses."""
        for tensor in tensors:
            self._pointers.update(str(tensor.data_ptr()).encode())

    def watch(self, module: torch.nn.Module) -> torch.nn.Module:
        """Note torch's counters around every part of *module*, forward and backward."""
        for name, part in module.named_modules():
            part.register_forward_pre_hook(lambda *_, name=name: self.at(f"before {name}"))
            part.register_forward_hook(lambda _, __, result, name=name: self._after(name, result))
        return module

    def call(self, module: Callable[..., Any], *inputs: Any) -> Any:
        """A forward; inside of backward it is a recompute."""
        inside = torch._C._current_graph_task_id() != -1
        with self.phase("recompute" if inside else "forward"):
            result = module(*inputs)
        self.see(result)
        return result

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss.detach()))
        with self.phase("backward"):
            loss.backward()

    def optimize(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        with self.phase("optimizer"):
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        with self.phase("zero_grad"):
            optimizer.zero_grad()

    # ------------------------------------------------------------------------------------- the result

    def answer(self) -> dict[str, Any]:
        names = (
            "first", "last", "points", "snapshots", "steps", "phases", "greatest", "random_states",
            "losses",
        )  # fmt: skip
        stats = torch.cuda.memory_stats()
        rest = {"pointers": self._pointers.hexdigest(), "retries": stats["num_alloc_retries"]}
        return {name: getattr(self, name) for name in names} | rest | {"ooms": stats["num_ooms"]}

    # -------------------------------------------------------------------------------------- privately

    def _recorder(self, **options: Any) -> Any:
        if self._directory is None:
            return nullcontext()
        import vramscope

        is_outermost = not self.points
        return vramscope.record(self._directory if is_outermost else None, quiet=True, **options)

    def _sometimes(self, where: str) -> None:
        if self._draw.random() < _SHARE_OF_OPERATIONS:
            self.at(where)

    def _after(self, name: str, result: Any) -> None:
        self.at(f"after {name}")
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.register_hook(lambda _: self.at(f"gradient of {name}"))

    @contextmanager
    def _interval(self) -> Iterator[list[int]]:
        """Its peak, the whole while: known at the end."""
        self._read_peak()
        found = [0]
        self._open.append(found)
        try:
            yield found
        finally:
            self._read_peak()
            self._open.pop()

    def _read_peak(self) -> None:
        """What came since the last boundary belongs to every interval that is open."""
        peak = torch.cuda.max_memory_allocated()
        self._greatest = max(self._greatest, peak)
        for interval in self._open:
            interval[0] = max(interval[0], peak)
        if self._resets:
            torch.cuda.reset_peak_memory_stats()


class _Operations(TorchFunctionMode):
    """Calls *at* after operations of the thread that entered it."""

    def __init__(self, at: Callable[[str], None]) -> None:
        super().__init__()
        self._at = at

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "?")
        # The recorder reads attributes of tensors: not to be counted, so that points are the same without it.
        if isinstance(result, torch.Tensor) and not name.startswith("__get"):
            self._at(name)
        return result


def moment() -> dict[str, Any]:
    stats = torch.cuda.memory_stats()
    return {
        "counts": [stats.get(name, 0) for name in COUNTS],
        "bytes": [stats.get(f"{name}_bytes.all.current", 0) for name in QUANTITIES],
    }


def segments() -> list[dict[str, Any]]:
    """Return the parts of the snapshot that do not depend on stacks."""
    of_segment = ("address", "total_size", "stream", "segment_type", "segment_pool_id", "is_expandable")
    of_block = ("address", "size", "requested_size", "state")
    return [
        {key: segment[key] for key in of_segment}
        | {"blocks": [{key: block[key] for key in of_block} for block in segment["blocks"]]}
        for segment in torch.cuda.memory._snapshot()["segments"]
        if segment["device"] == torch.cuda.current_device()
    ]


def _digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()
