"""The device of a dry run, as a source of events."""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from vramscope.allocator.simulation import OutOfMemory
from vramscope.capture import Failed, Options, hooks
from vramscope.capture.simulated import Simulated
from vramscope.capture.simulated.stacks import CallPath
from vramscope.capture.simulated.storages import Life, Storages
from vramscope.capture.undisturbed.tracked import tracked_objects
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import Category, MarkKind, Note
from vramscope.model.prediction import OutOfMemoryPoint
from vramscope.prediction.dry import versions
from vramscope.prediction.dry.doubts import Certainty, Doubt, own_frames, own_line
from vramscope.prediction.dry.mode import Event
from vramscope.prediction.dry.operators import RunSoFar
from vramscope.prediction.dry.operators.matmul import workspace_bytes
from vramscope.prediction.dry.placement import ProgramSettings
from vramscope.prediction.dry.shim.fake_cuda import FakeCuda
from vramscope.prediction.dry.shim.own_device import lies_there
from vramscope.prediction.dry.values import garbage
from vramscope.prediction.dry.values.garbage import Garbage
from vramscope.prediction.trial import Trial, card_of
from vramscope.units import format_bytes

# A group that sends nothing is exact; a genuine one lets blocks wait for its streams, which is not known.
_OFF_OF_RANKS = 0.06
# Torch 2.13 to 2.15 differ by less beside cuBLAS's workspaces, of which a training has two.
_OFF_OF_VERSIONS = 0.06
_N_WORKSPACES = 2
# NCCL's buffers for a few communicators, which lie beside torch's allocator.
_NCCL_BYTES = 1 << 30
# No program accumulates more gradients for a step than that.
_PASSES_WITHOUT_OPTIMIZER = 64


class _OwnStorages(Storages):
    """Storages on our own device, reported by the mode as they are made, so none is seen late."""

    def add(self, storage: Any, n_bytes: int) -> Life | None:
        """The life of a storage that was not known and has bytes on the card; None for any other."""
        if self.knows(storage._cdata) or not n_bytes:
            return None
        life = Life(storage, self.listener.died)
        life.cdata, life.n_bytes, life.address, life.maker = storage._cdata, n_bytes, 0, -1
        self.live[life.cdata] = life
        self.n_born += 1
        return life

    def see(self, out: Any, frame: FrameType | None) -> int:  # noqa: ARG002 -- as in Storages
        """Nothing: results of modules are known by their operators."""
        return 0

    def see_storage(self, storage: Any, frame: FrameType | None) -> bool:
        """Report a changed size of a known storage; returns False, since none is new here."""
        life, n_bytes = self.live.get(storage._cdata), storage.nbytes()
        if life is not None and life.n_bytes != n_bytes:
            life.n_bytes = n_bytes
            self.listener.resized(life, n_bytes, frame)
        return False

    def adopt(self, **_: Any) -> None:
        """Nothing: a device that did not exist before holds no storage, and the mode sees every size."""

    enter_thread = exit_thread = wrap_resize = unwrap_resize = adopt


class Predicted(Simulated):
    """Events of a program that runs in a ``FakeCuda``."""

    _storages: _OwnStorages

    def __init__(self, options: Options, failed: Failed, trial: Trial, *, is_last: bool) -> None:
        super().__init__(options, failed)
        self.card, self.total_bytes = card_of(trial.card, trial.capacity)
        self._most_steps = trial.steps
        self.program_settings = ProgramSettings(self._allocator)
        self._allocator.capacity_bytes = max(self.total_bytes - self.card.context_bytes, 1)
        self.devices = (Device(0, "cuda", self.card.name, self.total_bytes),)
        self._storages = _OwnStorages(self)
        self._labeler.storage_of = lambda tensor: tensor.untyped_storage() if lies_there(tensor) else None
        self.cuda = FakeCuda(
            self.card, self, trial.ranks, trial.answer, is_last=is_last, is_as_cuda=trial.is_as_cuda
        )
        self.cuda.mode.listener = None
        self._stream, self._pools = self.cuda.so_far.stream, self.cuda.so_far.pools
        self._pools.allocator = self._allocator
        self._workspaces = _Workspaces(self.died, self.cuda.so_far)
        self._pools.clear_workspaces = self._workspaces.clear
        self.oom: OutOfMemory | None = None
        self.least_bytes = 0
        """What is allocated at least, where a layer's parts take more than the layer does."""
        self.most_bytes = 0
        """What may be allocated at most, where an operator's own memory is known within a range only."""
        self.out_of_memory: OutOfMemoryPoint | None = None
        """What asked for the memory that was not there, the first time."""
        self.out_of_memory_at: str | None = None
        """The program's line at which memory ran out; '' where it has none."""
        self.peaks = {"allocated": 0, "reserved": 0, "active": 0, "requested": 0}
        """In bytes, of the whole run."""
        self._peaks = dict(self.peaks)
        self._optimizer: weakref.ref[Any] | None = None
        self._n_steps = self._n_backwards = 0
        self.ended_after = "its end"
        """How far the program was run: to ``its end``, for ``3 steps``."""
        self._n_taken = 0
        self.garbage = Garbage(self._allocated_now)

    def notes(self) -> list[Note]:
        """What makes the figures less than certain, for whoever opens the recording."""
        found, reasons = super().notes(), self.reasons
        if reasons:
            is_below = self.certainty == "cannot_tell" and versions.is_checked()
            are = "lower bounds" if is_below else "an estimate"
            more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
            found.append(
                Note(NoteCode.PREDICTION, f"the figures are {are}: {reasons[0]}{more}", len(reasons))
            )
        return found

    def enter_thread(self) -> None:
        """Observe the calling thread, and enter the CUDA of the dry run at the first call."""
        super().enter_thread()
        if self.cuda.mode.listener is None:
            self.cuda.__enter__()
            self.cuda.mode.listener = self
            self.garbage.begin(self.cuda.patches)
            self._n_backwards = 0  # entering it has tried one

    def leave_cuda(self) -> None:
        """The program is over: torch is as it was. Harmless where it was never entered."""
        if self.cuda.is_entered:
            self.cuda.__exit__(None, None, None)
            if self.garbage.tells(self.peaks["allocated"]):
                doubt = Doubt(Certainty.ESTIMATE, "reference cycles", garbage.WHY, "", is_bounded=False)
                self.cuda.doubts.put(doubt)

    def _frozen(self) -> Sequence[Any]:
        """Nothing: whatever is frozen is older than the device."""
        return ()

    @property
    def certainty(self) -> str:
        """``checked``, ``estimate`` or ``cannot_tell``."""
        return self.cuda.doubts.certainty.name.lower()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not ``checked``."""
        return tuple(map(str, self.cuda.doubts.all()))

    @property
    def range_bytes(self) -> tuple[int, int | None]:
        """The bounds of the peak of allocated memory in bytes; None where nothing bounds it above."""
        low, peak = self.least_bytes, self.peaks["allocated"]
        high = max(peak, self.most_bytes) if self.cuda.doubts.is_bounded else None
        share, below, above = 0.0, 0, 0
        if self.cuda.is_sharded:
            share, above = _OFF_OF_RANKS, _NCCL_BYTES
        if not versions.is_checked():
            workspaces = _N_WORKSPACES * workspace_bytes(self.card)
            share, below, above = share + _OFF_OF_VERSIONS, workspaces, above + workspaces
        if self.cuda.doubts.certainty is Certainty.CANNOT_TELL:
            # What lies between the tensors is unknown, and so is how their blocks are rounded.
            low = min(low, self.peaks["requested"])
        if self.garbage.tells(peak):
            low = min(low, self.garbage.least(peak))
        least = max(int(low * (1 - share)) - below, 0)
        return least, None if high is None else int(high * (1 + share)) + above

    def works(self, events: list[Event], perhaps: int, frame: Any) -> None:
        """Follow the events of one operator, in their order.

        What it took and neither gave back nor keeps is freed at its end; it may take *perhaps* more bytes
        meanwhile.
        """
        taken: list[Life] = []
        for kind, value in events:
            self._happens(kind, value, taken, frame)
        if self._queue:
            self._work()
        perhaps += self.cuda.so_far.reserve_bytes
        if perhaps:
            self.most_bytes = max(self.most_bytes, self._allocator.allocated_bytes + perhaps)
        for life in taken:
            self.died(life)
        if taken:
            self._work()
        self.garbage.operates()
        self._raise_where_full(frame)

    def _raise_where_full(self, frame: Any) -> None:
        if self.oom is not None:
            if self.out_of_memory is None:
                self.out_of_memory_at = own_line(frame)
                self.out_of_memory = OutOfMemoryPoint(
                    self.cuda.mode.operator.replace("aten::", "aten."),
                    own_frames(frame),
                    self.oom.need,
                    self._allocator.allocated_bytes,
                )
            raise self._error()

    def resizes(self, storage: Any, frame: Any) -> None:
        """Follow a storage that FSDP empties or fills again."""
        self._storages.see_storage(storage, frame)
        self._work()
        self._raise_where_full(frame)

    def _happens(self, kind: str, value: Any, taken: list[Life], frame: Any) -> None:
        if kind in ("made", "made_as"):
            storage, n_bytes = value if kind == "made_as" else (value, value.nbytes())
            born = self._storages.add(storage, n_bytes)
            if born is not None:
                self.born(born, frame)
        elif kind == "given":
            self.died(taken.pop(next(i for i, life in enumerate(taken) if life.n_bytes == value)))
        else:
            life = self._take(value, frame)
            if kind == "taken":
                taken.append(life)
            else:  # cuBLAS's workspace alone is kept
                self._workspaces.add(self._stream.now(), life)
                self._queue_label(life.cdata, Category.WORKSPACE)

    def born(self, life: Life, frame: FrameType | None) -> None:
        """Place a storage at once: an operator must fail where the memory runs out."""
        path = None if frame is None else self._walker.path(frame)
        if self._queue:
            self._work()  # what was released before it
        with self._at_work:
            self._now = max(self._now, time.time_ns())
            self._place(life, life.n_bytes, path, hooks.module_now(), None)

    def _take(self, n_bytes: int, frame: Any) -> Life:
        self._n_taken += 1
        memory = _TakenMemory()
        life = Life(memory)
        # No object of torch has a negative address.
        life.cdata, life.n_bytes, life.address, life.maker = -self._n_taken, n_bytes, 0, -1
        self.born(life, frame)
        return life

    def _malloc(self, life: Life, n_bytes: int, path: CallPath | None) -> None:
        self.program_settings.use()
        self._stack_id = stack_id = 0 if path is None else self._walker.stack_id(path)
        try:
            pool, stream = self._pools.now(), self._stream.now()
            life.address = self._allocator.malloc(n_bytes, stream, pool, stack_id)
        except OutOfMemory as error:
            self.oom = error
            self._marks.append((MarkKind.OOM, 0, self._now, self._n_events, 0, self._free_bytes(), ""))
        self._note_peaks()

    def _error(self) -> Exception:
        need, self.oom = self.oom.need if self.oom else 0, None
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {format_bytes(need)}. GPU 0 has a total capacity of "
            f"{format_bytes(self.total_bytes)} of which {format_bytes(self._free_bytes())} is free. "
            f"(dry run: {self.card.name})"
        )

    def _free_bytes(self) -> int:
        return (self._allocator.capacity_bytes or 0) - self._allocator.reserved_bytes

    def _allocated_now(self) -> int:
        self._work()
        return self._allocator.allocated_bytes

    def _note_peaks(self) -> None:
        now = self._allocator
        self.garbage.note(now.allocated_bytes)
        if not self.cuda.so_far.n_parts:
            self.least_bytes = max(self.least_bytes, now.allocated_bytes)
        for name, n_bytes in (
            ("allocated", now.allocated_bytes),
            ("reserved", now.reserved_bytes),
            ("active", now.active_bytes),
            ("requested", now.requested_bytes),
        ):
            if n_bytes > self._peaks[name]:
                self._peaks[name] = n_bytes
                self.peaks[name] = max(self.peaks[name], n_bytes)

    @property
    def capacity_bytes(self) -> int:
        """The memory of the card in bytes, CUDA's context included."""
        return self.total_bytes

    @property
    def stats(self) -> Mapping[str, int]:
        """The counters by the names of ``torch.cuda.memory_stats()``."""
        self._work()
        found = {}
        for name, peak in self._peaks.items():
            found[f"{name}_bytes.all.current"] = getattr(self._allocator, f"{name}_bytes")
            found[f"{name}_bytes.all.peak"] = peak
        counts = self._allocator.counts
        return found | {"num_ooms": counts.num_ooms, "num_alloc_retries": counts.num_alloc_retries}

    def reset_peaks(self) -> None:
        """Begin the peaks again at the current figures."""
        self._work()
        self._peaks = dict.fromkeys(self._peaks, 0)
        self._note_peaks()

    def empty_cache(self, pool: int = 0) -> None:
        """Everything unused goes back to the driver, or all that a deleted pool has cached."""
        self._work()
        with self._at_work:
            if pool:
                self._allocator.release_pool(pool)
            else:
                self._allocator.empty_cache()

    def backward_ends(self) -> None:
        """Stops a program that changes its parameters itself after as many passes as a step may have."""
        super().backward_ends()
        self._n_backwards += 1
        if (
            self._most_steps is not None
            and self._n_backwards == _PASSES_WITHOUT_OPTIMIZER
            and not tracked_objects(lambda kind: issubclass(kind, torch.optim.Optimizer))
        ):
            self.ended_after = f"{self._n_backwards} backward passes, as it has no optimizer of torch"
            self.cuda.end_program()

    def step_begins(self, optimizer: Any) -> None:
        """Stops the program after as many steps as were asked for, with what leads up to the next one."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            if self._most_steps is not None and self._n_steps >= self._most_steps:
                self.ended_after = "1 step" if self._most_steps == 1 else f"{self._most_steps} steps"
                self.cuda.end_program()
                return  # an optimizer that steps in a hook of a gradient
            self._n_steps += 1
            self.garbage.collect()
        super().step_begins(optimizer)


class _Workspaces:
    """What cuBLAS keeps for each stream."""

    def __init__(self, died: Callable[[Life], None], so_far: RunSoFar) -> None:
        self._died = died
        self._handles = (so_far.handles, so_far.lt_handles)
        self._lives: dict[int, list[Life]] = {}

    def add(self, stream: int, life: Life) -> None:
        self._lives.setdefault(stream, []).append(life)

    def clear(self, stream: int) -> None:
        for life in self._lives.pop(stream, ()):
            self._died(life)
        for handles in self._handles:
            handles.difference_update((is_backward, stream) for is_backward in (False, True))


class _TakenMemory:
    """What a weak reference can be made to."""

    __slots__ = ("__weakref__",)
