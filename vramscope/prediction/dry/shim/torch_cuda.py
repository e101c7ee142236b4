"""``torch.cuda`` as the chosen card would answer, in a build of torch without CUDA.

Memory is answered by the model of the allocator; a stream has blocks of its own and no work; events do
nothing; what asks the driver for something else keeps failing as torch lets it fail.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry import versions
from vramscope.prediction.dry.operators import RunSoFar
from vramscope.prediction.dry.placement import Chosen, CurrentStream, PrivatePools

if TYPE_CHECKING:
    from vramscope.prediction.dry.dry_capture import Predicted


_STREAMS_OF_A_PRIORITY = 32
"""torch gives its streams out in turn (c10/cuda/CUDAStream.cpp): the 33rd is the first again."""


class _Idle:
    """What waits for a card that runs nothing: all work is over as soon as it is asked for."""

    def synchronize(self, _other: Any = None) -> None:
        """Does nothing: all work is over."""

    def query(self) -> bool:
        """Whether all work is over, which it always is."""
        return True

    record = wait = wait_event = wait_stream = synchronize


class IdleStream(_Idle):
    """A stream of such a card."""

    device_index, device_type = 0, 1  # as torch numbers CUDA
    _current: CurrentStream
    _turns: Mapping[bool, Iterator[int]]
    """The next stream of either priority, normal or high."""

    def __init__(self, _: Any = None, priority: int = 0, *, stream_id: int | None = None, **__: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.priority = priority
        self.stream_id = next(self._turns[priority < 0]) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id
        self._before: list[Chosen] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdleStream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def record_event(self, event: Any = None) -> Any:
        """Returns *event*, or a new one; it has passed."""
        return event or IdleEvent()

    def make_current(self) -> None:
        """What is allocated from now on belongs to this stream."""
        self._current.choose(self.stream_id)

    def __enter__(self) -> "IdleStream":
        self._before.append(self._current.chosen)
        self.make_current()
        return self

    def __exit__(self, *_: object) -> None:
        self._current.restore(self._before.pop())


def _streams(current: CurrentStream) -> type[IdleStream]:
    turns = {
        is_high: itertools.cycle(range(first, first + _STREAMS_OF_A_PRIORITY))
        for is_high, first in ((False, 1), (True, 1 + _STREAMS_OF_A_PRIORITY))
    }
    captures = {"is_capturing": lambda _: torch.cuda.is_current_stream_capturing()}
    return type("Stream", (IdleStream,), {"_current": current, "_turns": turns, **captures})


class CapturedGraph:
    """``torch.cuda.CUDAGraph``: a replay works in the blocks that the capture left in its pool."""

    _pools: PrivatePools
    _current: CurrentStream

    def __init__(self, *_: Any, **__: Any) -> None:
        self._pool = self._stream = 0
        self._seeds: list[Any] = []

    def capture_begin(self, pool: tuple[int, int] | None = None, **_: Any) -> None:
        """Begin the capture, in a pool of its own or in the given one."""
        self._stream = self._current.now()
        if versions.seeds_every_graph():
            self._seed()
        self._pool = pool[1] if pool else self._pools.new()
        self._pools.capture(self._pool)

    def capture_end(self) -> None:
        """End the capture: blocks belong to no graph again."""
        self._pools.capturing = 0
        if self._pools.is_random and not self._seeds:
            self._seed()

    def _seed(self) -> None:
        """Make the seed and the offset of the graph's random numbers (aten/src/ATen/cuda/CUDAGraph.cpp)."""
        before = self._current.chosen
        self._current.choose(0)
        self._seeds = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2)]
        self._current.restore(before)

    def pool(self) -> tuple[int, int]:
        """The handle of the pool, which another graph may share."""
        return 0, self._pool

    def reset(self) -> None:
        """Let go of the pool, and of the workspaces of the stream that was captured."""
        pool, self._pool = self._pool, 0
        if pool:
            self._seeds.clear()
            if not versions.keeps_lt_workspaces():
                self._pools.clear_workspaces(self._stream)
            self._pools.drop(pool)

    __del__ = reset

    def _nothing(self, *_: Any) -> None:
        """No block is new, and what the driver takes for a graph lies beside the allocator."""

    replay = instantiate = enable_debug_mode = debug_dump = _nothing


class MemPool:
    """``torch.cuda.MemPool``: its memory goes back to the driver when it is deleted."""

    _pools: PrivatePools
    _memory: "Predicted"

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        self.allocator = allocator
        self.id = (0, self._pools.new())
        self._pools.users[self.id[1]] += 1
        if no_split:
            self._pools.allocator.whole_pools.add(self.id[1])
        if use_on_oom:
            self._pools.allocator.last_resorts.append(self.id[1])

    def use_count(self) -> int:
        """How many graphs, blocks and pools use it, itself included."""
        return self._pools.users[self.id[1]]

    def __del__(self) -> None:
        self._pools.drop(self.id[1])
        self._memory.empty_cache(self.id[1])


class IdleEvent(_Idle):
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def elapsed_time(self, _end: Any) -> float:
        """The milliseconds between two events: always 1."""
        return 1.0


class Properties:
    """The answer of ``torch.cuda.get_device_properties()``."""

    def __init__(self, card: Hardware, total_memory: int) -> None:
        self.name = f"NVIDIA {card.name}"
        self.major, self.minor = card.capability
        self.total_memory = total_memory
        self.multi_processor_count = card.n_multiprocessors
        self.max_threads_per_multi_processor = card.threads_per_multiprocessor
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 232_448 if self.major >= 9 else 101_376
        self.shared_memory_per_multiprocessor = 233_472 if self.major >= 9 else 102_400
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = self.name
        self.L2_cache_size = 50 << 20
        self.uuid = "00000000-0000-0000-0000-000000000000"


class _Runtime:
    """``torch.cuda.cudart()``: every call succeeds."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_, **__: 0


_NOTHING = (
    "init", "_lazy_init", "_lazy_call", "set_device", "synchronize", "ipc_collect", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
    "reset_accumulated_memory_stats",
)  # fmt: skip
"""What does nothing."""
_FIGURES = {"memory_allocated": "allocated", "memory_reserved": "reserved", "memory_cached": "reserved"}


def answers(card: Hardware, memory: "Predicted", so_far: RunSoFar, n_devices: int = 1) -> dict[str, Any]:
    """What to put into ``torch.cuda``, by name; of several cards the program uses the first."""
    properties, stream = Properties(card, memory.capacity_bytes), _streams(so_far.stream)
    pools = so_far.pools
    graphs = {"_pools": pools, "_current": so_far.stream}

    def make_current(chosen: IdleStream | None) -> None:
        if chosen is not None:
            chosen.make_current()

    def stat(key: str) -> Callable[..., int]:
        return lambda *_, **__: memory.stats.get(key, 0)

    def mem_get_info(*_: Any, **__: Any) -> tuple[int, int]:
        used = memory.stats["reserved_bytes.all.current"] + card.context_bytes
        return max(memory.capacity_bytes - used, 0), memory.capacity_bytes

    state = torch.zeros(16, dtype=torch.uint8)
    return {
        **{name: _none() for name in _NOTHING},
        **{name: stat(f"{key}_bytes.all.current") for name, key in _FIGURES.items()},
        **{f"max_{name}": stat(f"{key}_bytes.all.peak") for name, key in _FIGURES.items()},
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: n_devices,
        "current_device": lambda: 0,
        "device": _DeviceGuard,
        "device_of": _DeviceGuard,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or card.capability[0] >= 8,
        "is_tf32_supported": lambda: card.capability[0] >= 8,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: card.capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{card.capability[0]}{card.capability[1]}"],
        "can_device_access_peer": lambda *_: False,
        "cudart": _Runtime,
        "Stream": stream,
        "Event": IdleEvent,
        "stream": _chosen,
        "StreamContext": _chosen,
        "set_stream": make_current,
        "current_stream": lambda *_: stream(stream_id=so_far.stream.now()),
        "default_stream": lambda *_: stream(stream_id=0),
        "CUDAGraph": type("CUDAGraph", (CapturedGraph,), graphs),
        "MemPool": type("MemPool", (MemPool,), {"_pools": pools, "_memory": memory}),
        "use_mem_pool": pools.use,
        "graph_pool_handle": lambda: (0, pools.new()),
        "is_current_stream_capturing": lambda: pools.capturing != 0,
        "utilization": lambda *_: 0,
        "memory_usage": lambda *_: 0,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
        "empty_cache": memory.empty_cache,
        "memory_stats": lambda *_: dict(memory.stats),
        "reset_peak_memory_stats": lambda *_: memory.reset_peaks(),
        "reset_max_memory_allocated": lambda *_: memory.reset_peaks(),
        "mem_get_info": mem_get_info,
        "memory_summary": lambda *_, **__: "",
        "get_allocator_backend": lambda: "native",
    }


def _chosen(stream: IdleStream | None) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else stream


def scatter_of(stream: type[IdleStream]) -> Callable[..., Any]:
    """``nn.DataParallel`` gives the whole batch to the first card, which is all that a dry run has."""
    background: list[IdleStream] = []

    def scatter(ctx: Any, devices: Sequence[int], _sizes: Any, dim: int, batch: Any) -> tuple[Any, ...]:
        ctx.dim, ctx.input_device = dim, batch.get_device() if batch.is_cuda else -1
        if batch.is_cuda:
            return (batch.view_as(batch),)
        background.extend([] if background else [stream()])
        with background[0]:
            return (batch.to(f"cuda:{devices[0]}", non_blocking=True),)

    return scatter


def _none() -> Callable[..., None]:
    """Another function each time: torch's compiler refuses one that it finds under two names."""

    def none(*_: Any, **__: Any) -> None: ...

    return none


class _DeviceGuard:
    """``with torch.cuda.device(0):``"""

    def __init__(self, _device: Any) -> None:
        self.idx = 0
        self.prev_idx = 0

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
