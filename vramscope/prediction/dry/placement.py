"""Where the blocks of a dry run belong: to a stream and to a pool of graphs, by the program's settings."""

import bisect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from vramscope.allocator.settings import Settings
from vramscope.allocator.simulation import CachingAllocator
from vramscope.capture.torch_versions import allocator_conf
from vramscope.prediction.dry import versions
from vramscope.prediction.dry.doubts import Certainty, Doubts
from vramscope.prediction.dry.shim.patches import Patches

_BY_CALL = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
_KEPT = {"expandable_segments": "expandable_segments", "large_segment_size": "large_segment_size_mb"}
"""What a later text leaves as it was where it does not name it, by the name in it."""
_SHARE = "set_per_process_memory_fraction"


class Chosen(NamedTuple):
    """A stream, and the backward in which it was made the current one; −1 outside of any."""

    stream: int = 0
    backward: int = -1


class CurrentStream:
    """Knows which stream an operator runs on.

    Autograd runs a node on the stream that was current when the forward made it, whatever is current where
    ``backward()`` is called (torch/csrc/autograd/engine.cpp). A thread's nodes are numbered in their order.
    """

    def __init__(self) -> None:
        self.chosen = Chosen()
        self._first_nodes = [0]
        """The number of the first node since each change of the stream, ascending."""
        self._streams = [0]

    def choose(self, stream: int) -> None:
        """Make *stream* the current one, as ``torch.cuda.set_stream`` does."""
        self.restore(Chosen(stream, torch._C._current_graph_task_id()))

    def restore(self, chosen: Chosen) -> None:
        """Make the stream the current one that was so before."""
        self.chosen = chosen
        node, stream = torch._C._autograd._get_sequence_nr(), self.now()
        if node == self._first_nodes[-1]:
            self._streams[-1] = stream
        elif stream != self._streams[-1]:
            self._first_nodes.append(node)
            self._streams.append(stream)

    def now(self) -> int:
        """The stream of the operator that runs."""
        backward = torch._C._current_graph_task_id()
        if backward in (-1, self.chosen.backward):
            return self.chosen.stream
        return self._of_node(torch._C._current_autograd_node())

    def _of_node(self, node: Any) -> int:
        # What accumulates gradients has the largest number, and runs where the training does.
        number = -1 if node is None else node._sequence_nr()
        if not 0 <= number < torch.iinfo(torch.int64).max:
            return self.chosen.stream
        return self._streams[bisect.bisect_right(self._first_nodes, number) - 1]


class PrivatePools:
    """The pools of CUDA graphs and ``MemPool``s; a pool that nobody uses any more may be released."""

    def __init__(self) -> None:
        self.capturing = 0
        """The pool of the graph that is being captured; 0 where none is."""
        self._chosen: list[int] = []
        """The pools of the blocks ``use_mem_pool`` that are open, innermost last."""
        self.is_random = False
        """Whether the graph that is being captured draws random numbers."""
        self.allocator: CachingAllocator
        self.clear_workspaces: Callable[[int], None]
        """Frees what cuBLAS keeps for a stream."""
        self.users: Counter[int] = Counter()
        """How many graphs, ``MemPool``s and open blocks use each pool."""
        self._n_pools = 0

    def now(self) -> int:
        """The pool of the next block; CUDA runs backward on a thread that no ``use_mem_pool`` is open on."""
        if self._chosen and torch._C._current_graph_task_id() == -1:
            return self._chosen[-1]
        return self.capturing

    def new(self) -> int:
        """Return a pool that nothing uses yet."""
        self._n_pools += 1
        return self._n_pools

    @contextmanager
    def use(self, pool: Any, _device: Any = None) -> Iterator[None]:
        """Let blocks belong to a ``MemPool``: ``torch.cuda.use_mem_pool``."""
        number = pool.id[1]
        self.users[number] += 1
        self._chosen.append(number)
        try:
            yield
        finally:
            self._chosen.pop()
            self.drop(number)

    def capture(self, pool: int) -> None:
        """From now on blocks belong to *pool*."""
        self.users[pool] += 1
        self.capturing, self.is_random = pool, False

    def drop(self, pool: int) -> None:
        """Count one user less of *pool*."""
        self.users[pool] -= 1
        if not self.users[pool]:
            self.allocator.retire_pool(pool)


class ProgramSettings:
    """The settings of one dry run's allocator."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._is_used = False

    def use(self) -> None:
        """Read the environment, as torch does when a program first uses the card, not when it is imported."""
        if not self._is_used:
            self._is_used = True
            self._read(allocator_conf(versions.name()))

    def follow(self, patches: Patches, doubts: Doubts) -> None:
        """Follow what the program calls, for the length of a dry run."""

        def limited(fraction: float, *_: Any, **__: Any) -> None:
            if fraction < 1:
                why = (
                    f"the program limits itself to {100 * fraction:.3g} % of the card; taken as if it did not"
                )
                doubts.add(Certainty.ESTIMATE, f"torch.cuda.{_SHARE}", why, sys._getframe(1))

        for name in _BY_CALL:
            if hasattr(torch._C, name):
                patches.set(torch._C, name, self._configure)
        for home in (torch.cuda, torch.cuda.memory):
            patches.set(home, _SHARE, limited)

    def _configure(self, text: str) -> None:
        self.use()
        self._read(text)

    def _read(self, text: str) -> None:
        before = self._allocator.settings
        kept = {name: getattr(before, name) for name, key in _KEPT.items() if key not in text}
        self._allocator.settings = replace(Settings.from_conf(text, torch=versions.name()), **kept)
