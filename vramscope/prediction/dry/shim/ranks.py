"""One rank of several, alone: a process group that sends nothing, whatever backend the program asks for."""

import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from vramscope.errors import CaptureError
from vramscope.prediction.dry.doubts import Certainty, Doubts
from vramscope.prediction.dry.shim.own_device import NAME
from vramscope.prediction.dry.shim.patches import Patches

_RANKS_OF_A_NODE = 8
_FIRST = (
    "the first of the processes that it starts for its ranks is run, and the others are taken to be alike"
)
_NCCL = (
    "NCCL keeps buffers beside torch's allocator, and how long blocks wait for its streams is unknown: "
    "within 6 % and 1 GiB"
)
_C10D = "torch.distributed.distributed_c10d"
# Compares the shapes of parameters among ranks by reading what the others sent.
_CHECKERS = ("torch.distributed.utils", "torch.nn.parallel.distributed")
_NCCL_VERSION = 2, 27, 0


class _EndedProcess:
    """What a process, or all that were spawned, are to whoever waits for them: they have ended well."""

    pid = returncode = 0
    processes = ()

    def join(self, *_: Any, **__: Any) -> bool:
        return True

    def wait(self, *_: Any) -> int:
        return 0

    poll = close = terminate = kill = wait


class Ranks:
    """The process group of a dry run."""

    def __init__(self, count: int | None, doubts: Doubts) -> None:
        self._count = count
        self._doubts = doubts
        self._has_rank = False
        self.has_begun = False
        """Whether the program has started a process group."""

    @property
    def n_devices(self) -> int:
        """The number of cards that the program sees: one for each rank of its node."""
        return min(self._count or 1, _RANKS_OF_A_NODE)

    def begin(self, patches: Patches) -> None:
        """Set what ``torchrun`` sets, and answer for ``torch.distributed`` until the patches are undone."""
        for name in ("spawn", "start_processes"):
            patches.set(torch.multiprocessing, name, self._spawn)
        patches.set(BaseProcess, "start", self._starting(BaseProcess.start))
        if not torch.distributed.is_available():
            return
        if self._count is not None:
            self._environment(self._count, patches)
            fsdp = importlib.import_module("torch.distributed.fsdp._init_utils")
            patches.set(fsdp, "_get_device_from_device_id", _on_cuda(fsdp._get_device_from_device_id))
            alone = _on_cuda(fsdp._get_compute_device)
            patches.set(fsdp, "_get_compute_device", lambda *given: alone(*given[:2], None, *given[3:]))
        home = importlib.import_module(_C10D)
        patches.set(home, "init_process_group", self._group(home.init_process_group))
        patches.set(home, "new_group", _any_backend(home.new_group))
        for name in ("torch.distributed", "torch.distributed.device_mesh"):
            other = sys.modules.get(name)
            for function in ("init_process_group", "new_group") if other is not None else ():
                if hasattr(other, function):
                    patches.set(other, function, getattr(home, function))
        for name in _CHECKERS:
            checker = sys.modules.get(name)
            if checker is not None:
                patches.set(checker, "_verify_param_shape_across_processes", lambda *_, **__: None)
        patches.set(torch.distributed, "is_nccl_available", lambda: True)
        # A build for CPUs lacks it; communication hooks compare it with 2.10, libraries with less.
        patches.set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
        patches.then(self._end)

    def _spawn(self, function: Callable[..., Any], args: Any = (), *_: Any, **__: Any) -> _EndedProcess:
        self._doubts.add(Certainty.ESTIMATE, "torch.multiprocessing", _FIRST, sys._getframe(1))
        function(0, *args)
        return _EndedProcess()

    def _starting(self, start: Callable[[Any], None]) -> Callable[[Any], None]:
        def started(process: Any) -> None:
            """Run the first process of a group here, and none of the others; any other one starts."""
            if not _begins_group(process._target, *process._args, type(process).run):
                start(process)
                return
            if not self._has_rank:
                self._has_rank = True
                self._spawn(lambda _: process.run())
            process._popen = _EndedProcess()

        return started

    def _environment(self, count: int, patches: Patches) -> None:
        given = {
            "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "ROLE_RANK": 0,
            "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": self.n_devices, "ROLE_WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500,
        }  # fmt: skip
        for name, value in given.items():
            patches.set_environment(name, str(value))

    def _group(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(
            backend: Any = None,  # noqa: ARG001 -- whatever it is, nothing is sent
            init_method: Any = None,  # noqa: ARG001
            timeout: Any = None,  # noqa: ARG001
            world_size: int = -1,
            rank: int = -1,
            **_: Any,
        ) -> None:
            count = self._count or (world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "0")))
            if not count:
                raise CaptureError("the program starts a process group: give the number of ranks, --ranks N")
            from torch.testing._internal.distributed.fake_pg import FakeStore

            self.has_begun = True
            self._doubts.add(Certainty.ESTIMATE, "torch.distributed", _NCCL, sys._getframe(1))
            here = rank if 0 <= rank < count else int(os.environ.get("RANK", "0"))
            init(f"cpu:fake,cuda:fake,{NAME}:fake", rank=here, world_size=count, store=FakeStore())

        return init_process_group

    def _end(self) -> None:
        if self.has_begun and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _begins_group(*targets: Any) -> bool:
    """Whether one of them, or a function of the program that it names, starts a process group."""
    waiting, seen = list(targets), set()
    while waiting:
        one = waiting.pop()
        one = getattr(one, "func", getattr(one, "__func__", one))
        code = getattr(one, "__code__", None)
        if code is None or code in seen or str(one.__module__).partition(".")[0] == "torch":
            continue
        if "init_process_group" in code.co_names:
            return True
        seen.add(code)
        waiting += [one.__globals__.get(name) for name in code.co_names]
    return False


def _on_cuda(chosen: Callable[..., Any]) -> Callable[..., Any]:
    """To torch a bare number is a card of the accelerator, which is our own device."""

    def device(*given: Any) -> Any:
        found = chosen(*given)
        return torch.device("cuda", 0) if found is not None and found.type == NAME else found

    return device


def _any_backend(new_group: Callable[..., Any]) -> Callable[..., Any]:
    def new_subgroup(ranks: Any = None, _timeout: Any = None, _backend: Any = None, **options: Any) -> Any:
        """Make a group of the default group's backend, whatever is asked for."""
        for name in ("timeout", "backend", "pg_options", "device_id"):
            options.pop(name, None)
        return new_group(ranks=ranks, **options)

    return new_subgroup


_WORK_ALONE = frozenset(
    {"c10d::send", "c10d::recv_", "c10d::recv_any_source_", "c10d::reduce_", "c10d::gather_",
     "c10d::alltoall_base_", "c10d::barrier"}
)  # fmt: skip


def answer(func: Any, args: Any) -> Any:
    """Return what a collective of c10d returns at once: its tensors as they are, and work that is over."""
    work_of = importlib.import_module("torch._C._distributed_c10d")._create_work_from_future
    name = func._schema.name
    if name == "c10d::monitored_barrier_":
        return None
    future: Any = torch.futures.Future()
    given = args[0]
    future.set_result(list(given) if isinstance(given, list | tuple) else [given])
    work = work_of(future).boxed()
    return work if name in _WORK_ALONE else (args[0], work)
