"""A process in which ``cuda`` is there: what a program asks torch for is answered by the chosen card.

Entered before the program's first tensor and left after its last; everything is put back.
"""

import copyreg
import functools
import importlib
import importlib.util
import logging
import operator
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from vramscope.model.prediction import ChangedAnswer
from vramscope.prediction.cards import Hardware
from vramscope.prediction.dry import autocast, state, versions
from vramscope.prediction.dry.doubts import Certainty, Doubt, Doubts
from vramscope.prediction.dry.mode import DryMode
from vramscope.prediction.dry.operators import RunSoFar
from vramscope.prediction.dry.operators.attention import fused_bytes
from vramscope.prediction.dry.shim import (
    checkpoints,
    light_compiler,
    light_symbols,
    pretrained,
    replacements,
    tensor_values,
    torch_cuda,
)
from vramscope.prediction.dry.shim.devices import AsCuda, OwnDevices
from vramscope.prediction.dry.shim.engine_order import EngineOrder
from vramscope.prediction.dry.shim.own_device import NAME, is_own, own_device, pin
from vramscope.prediction.dry.shim.patches import Patches, when_imported
from vramscope.prediction.dry.shim.ranks import Ranks
from vramscope.prediction.dry.values.choices import Choices, Enough
from vramscope.prediction.dry.values.unknown import trace_mathematics

if TYPE_CHECKING:
    from vramscope.prediction.dry.dry_capture import Predicted

_CUDA = torch.device("cuda", 0)


@functools.cache
def prepare() -> tuple[Any, ...]:
    """The kernels of our own device, registered once; they last as long as the process.

    Raises CaptureError where this torch lacks what a dry run needs.
    """
    own_device()
    library, everything = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    autocast.install(library)
    replacements.install(library)
    return library, everything


class FakeCuda:
    """One dry run's: a context manager that may be entered once."""

    def __init__(
        self,
        card: Hardware,
        memory: "Predicted",
        n_ranks: int | None = None,
        changed_answer: ChangedAnswer | None = None,
        *,
        is_last: bool = False,
        is_as_cuda: bool = False,
    ) -> None:
        self.card = card
        self.doubts = Doubts()
        if not versions.is_checked():
            what = f"torch {versions.name()}"
            self.doubts.put(Doubt(Certainty.ESTIMATE, what, versions.NOT_CHECKED, where=""))
        if not card.is_checked:
            why = "what operators take was checked for cards of NVIDIA only"
            self.doubts.put(Doubt(Certainty.ESTIMATE, card.name, why, where="", is_bounded=False))
        self.choices = Choices(changed_answer)
        self.so_far = RunSoFar(card)
        self.patches = Patches()
        light_compiler.install(self.patches)
        light_symbols.install(self.patches, is_last=is_last and n_ranks is None)
        self.mode = DryMode(own_device(), self.doubts, self.so_far)
        self._as_cuda = AsCuda(own_device()) if is_as_cuda else None
        self._devices = OwnDevices(own_device(), self.mode, self._as_cuda)
        self._memory = memory
        self._ranks = Ranks(n_ranks, self.doubts)
        self._order = EngineOrder()
        self._entered = ExitStack()
        self.is_entered = False

    @property
    def is_sharded(self) -> bool:
        """Whether the program has started a process group."""
        return self._ranks.has_begun

    def __enter__(self) -> "FakeCuda":
        prepare()
        try:
            self._enter()
        except BaseException:
            self._entered.close()  # torch is as it was, and the program is not run
            raise
        self.is_entered = True
        return self

    def _enter(self) -> None:
        state.begin(self)
        self._entered.callback(state.end, self)
        self._entered.callback(self.patches.undo)
        answers = torch_cuda.answers(self.card, self._memory, self.so_far, self._ranks.n_devices)
        for name, value in answers.items():
            self.patches.set(torch.cuda, name, value)
        for home in (torch.cuda.memory, torch.cuda.random, torch.cuda.graphs):
            for name, value in answers.items():
                if hasattr(home, name):
                    self.patches.set(home, name, value)
        scatter = torch_cuda.scatter_of(torch.cuda.Stream)
        self.patches.set(torch.nn.parallel._functions.Scatter, "forward", staticmethod(scatter))
        self.patches.set(torch._C, "_host_emptyCache", lambda: None)
        self.patches.set(torch.cuda.graphs.graph, "default_capture_stream", None)
        self._memory.program_settings.follow(self.patches, self.doubts)
        self._tensors()
        self._modules()
        self._autocast()
        self._engine()
        self._programs()
        if self._as_cuda is not None:
            self._as_cuda.begin(self.patches, self.doubts)
        self._ranks.begin(self.patches)
        self.patches.set(torch.UntypedStorage, "resize_", self._resizing(torch.UntypedStorage.resize_))
        self._entered.enter_context(self.mode)
        self._entered.enter_context(self._devices)
        self.mode.learn_references()
        self._order.begin()
        self.so_far.operators.clear()

    def __exit__(self, *_: object) -> None:
        self.is_entered = False
        self.mode.listener = None
        self._entered.close()
        autocast.casts.clear()

    def end_if_endless(self) -> None:
        """Leave a program that waits for another answer than it gets."""
        if self.choices.is_endless:
            self.end_program()

    def end_program(self) -> None:
        """Leave the program: now, or within a backward when that is over."""
        if not self.so_far.is_backward:
            raise Enough
        self.mode.postpone(Enough())

    def _tensors(self) -> None:
        """Makes a tensor on our device report that it lies on ``cuda:0``."""
        mode, inner = self.mode, FakeTensor.__dict__["device"]

        def device(tensor: Any) -> torch.device:
            if not mode.is_inside and tensor.fake_device.type == NAME:
                return _CUDA
            return inner.fget(tensor)

        self.patches.set(FakeTensor, "device", property(device, inner.fset))
        self.patches.set(FakeTensor, "is_cuda", property(is_own))
        self.patches.set(FakeTensor, "get_device", lambda tensor: 0 if is_own(tensor) else -1)
        self.patches.set(FakeTensor, "tolist", tensor_values.listed)
        self.patches.set(FakeTensor, "numpy", tensor_values.array)
        self.patches.set(FakeTensor, "__array__", tensor_values.array)
        self.patches.set(FakeTensor, "record_stream", lambda *_: None)
        self.patches.set(FakeTensor, "get_nested_int", _ragged)
        self.patches.set(torch.UntypedStorage, "data_ptr", _address)
        self.patches.set(
            FakeTensor,
            "data_ptr",
            lambda it, *_: it.untyped_storage().data_ptr() + it.storage_offset() * it.element_size(),
        )
        self.patches.set(FakeTensor, "data", property(_DATA.__get__, _set_data))
        self.patches.set(UninitializedTensorMixin, "materialize", _materialize)
        self.patches.set(torch.Tensor, "pin_memory", pin)
        when_imported(self.patches, "torch.distributed.tensor", self._sharded_tensors)
        when_imported(self.patches, "torch.distributed.tensor._sharding_prop", self._propagation)

    def _sharded_tensors(self, home: ModuleType) -> None:
        """Makes a DTensor report what the part of this rank does."""
        for name in ("device", "is_cuda"):
            self.patches.set(home.DTensor, name, property(operator.attrgetter(f"_local_tensor.{name}")))

    def _propagation(self, home: ModuleType) -> None:
        """Makes what DTensor does on fakes of whole tensors cost nothing."""
        name = "_propagate_tensor_meta_non_cached"
        run = getattr(home.ShardingPropagator, name, None)
        if run is not None:
            self.patches.set(home.ShardingPropagator, name, self._without_memory(run))

    def _without_memory(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """DTensor runs an operator on fakes of the whole tensors to know the shape of its result."""

        @functools.wraps(run)
        def shaped(*args: Any, **kwargs: Any) -> Any:
            listener, self.mode.listener = self.mode.listener, None
            try:
                return run(*args, **kwargs)
            finally:
                self.mode.listener = listener

        return shaped

    def _modules(self) -> None:
        """Parameters are fake from the beginning, so that moving a module keeps each what it is."""
        make = torch.nn.Parameter.__dict__["__new__"]
        fake_of = self.mode.fake_of

        def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            if type(data) is torch.Tensor and data.device.type == "cpu":
                data = fake_of(data)
            return make.__func__(cls, data, requires_grad)

        self.patches.set(torch.nn.Parameter, "__new__", staticmethod(new))
        self.patches.set(torch.utils, "swap_tensors", _swap)
        # Parameters of another type make an optimizer choose its slowest way.
        for home in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            kinds = import_module(home)._foreach_supported_types
            kinds.append(FakeTensor)
            self.patches.then(functools.partial(kinds.remove, FakeTensor))

    def _resizing(self, resize: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP frees and takes the storages of its parameters by their size."""

        @functools.wraps(resize)
        def resized(storage: Any, size: int) -> Any:
            out = resize(storage, size)
            if self.mode.listener is not None:
                self.mode.listener.resizes(storage, sys._getframe(1))
            return out

        return resized

    def _autocast(self) -> None:
        """What the program sets for ``cuda`` holds for our device."""
        enable, clear = torch.set_autocast_enabled, torch.clear_autocast_cache

        def set_enabled(*args: Any) -> None:
            enable(*args)
            if len(args) == 1 or args[0] == "cuda":
                enable(NAME, args[-1])

        def clear_cache() -> None:
            clear()
            autocast.casts.clear()

        self.patches.set(torch, "set_autocast_enabled", set_enabled)
        self.patches.set(torch, "clear_autocast_cache", clear_cache)

    def _engine(self) -> None:
        """Backward on the program's own thread, so that its allocations have a stack."""
        was_threaded = torch._C._is_multithreading_enabled()
        torch._C._set_multithreading_enabled(False)
        self.patches.then(lambda: torch._C._set_multithreading_enabled(was_threaded))
        for home in (torch.autograd.graph, torch.autograd):
            self.patches.set(home, "_engine_run_backward", self._backward(home._engine_run_backward))
        was_lifting = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        self.patches.then(lambda: torch._C._set_only_lift_cpu_tensors(was_lifting))

    def _backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def backward(outputs: Any, given: Any, keeps: Any, creates: Any, *args: Any, **kwargs: Any) -> Any:
            is_inner = self.so_far.is_backward  # a node of another one runs it, on the same thread
            order = nullcontext() if is_inner else self._order.backward(outputs, makes_graph=creates)
            try:
                with order:
                    return run(outputs, given, keeps, creates, *args, **kwargs)
            finally:
                self.mode.raise_pending()

        return backward

    def _programs(self) -> None:
        """Nothing is compiled, saved or fetched."""
        _refuse_network(self.patches)
        pretrained.build(self.patches, self.doubts)
        trace_mathematics(self.patches)
        # Of an operator that fails it writes the whole traceback, though the program may catch the error.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        self.patches.then(functools.partial(log.setLevel, log.level))
        log.setLevel(logging.CRITICAL)
        # torch would answer with our own device, which no tensor reports.
        self.patches.set(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
        self.patches.set(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda"))
        self.patches.set(torch.accelerator, "device_count", torch.cuda.device_count)
        self.patches.set(torch.accelerator, "current_stream", torch.cuda.current_stream)
        # Recurrent layers ask it, and warn where torch has no cuDNN.
        self.patches.set(torch.backends.cudnn, "is_acceptable", lambda *_: False)

        def compiled(model: Any = None, **_: Any) -> Any:
            why = "compiled code plans its memory in another way: taken as eager"
            self.doubts.add(Certainty.ESTIMATE, "torch.compile", why, is_bounded=False)
            return (lambda function: function) if model is None else model

        for kind in (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention):
            self.patches.set(kind, "forward", self._fused(kind.forward))
        self.patches.set(torch, "compile", compiled)
        self.patches.set(torch.nn.Module, "compile", lambda module, *_, **__: compiled(module) and None)
        checkpoints.keep_apart(self.patches)
        self.patches.set(torch, "Generator", _Generator)
        self.patches.set(torch.version, "cuda", torch.version.cuda or "13.0")

    def _fused(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A layer that CUDA runs as one operator where nothing is trained."""

        @functools.wraps(forward)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            if module.training or torch.is_grad_enabled() or self.so_far.n_parts:
                return forward(module, *args, **kwargs)
            why = "one operator on CUDA where nothing is trained: taken as its parts, within a range"
            self.doubts.add(Certainty.ESTIMATE, type(module).__name__, why)
            self._memory.works([], fused_bytes(module, *args, **kwargs), sys._getframe(1))
            with self.so_far.taken_as_parts():
                return forward(module, *args, **kwargs)

        return run


class _Generator(torch.Generator):
    """A generator of the host, wherever the program wants it."""

    def __new__(cls, *_: Any, **__: Any) -> "_Generator":
        return super().__new__(cls, "cpu")


_OWN_ADDRESS, _DATA = torch.UntypedStorage.data_ptr, torch.Tensor.data
_OWN_MATERIALIZE = UninitializedTensorMixin.materialize


def _ragged(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("nested tensors do not run dry: pad the sequences to one length instead")


def _address(storage: Any) -> int:
    """An address where there is no content: FSDP asks whether tensors lie on one storage, and 0 is freed."""
    if storage.device.type not in ("meta", NAME):
        return int(_OWN_ADDRESS(storage))
    return int(storage._cdata) if storage.nbytes() else 0


def _set_data(tensor: Any, value: Any) -> Any:
    """``tensor.data = value``, also from the host to the card: two kinds of fakes, one of tensors."""
    if tensor.device.type == value.device.type:
        return _DATA.__set__(tensor, value)
    gradient, new = tensor.grad, value.detach().requires_grad_(tensor.requires_grad)
    new._is_param = isinstance(tensor, torch.nn.Parameter)
    new.grad = None if gradient is None else gradient.to(new.device)
    return torch.utils.swap_tensors(tensor, new)


def _materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Give a lazy module's parameter or buffer its size, on the card where it was moved there before."""
    device = device or getattr(tensor, "lies_later_on", None)
    if device is None or torch.device(device).type not in ("cuda", NAME):
        return _OWN_MATERIALIZE(tensor, shape, device, dtype)
    new = torch.empty(shape, device=device, dtype=dtype or tensor.data.dtype)
    new.requires_grad_(tensor.requires_grad)
    new._is_param = isinstance(tensor, torch.nn.Parameter)
    return _swap(tensor, new)


def _swap(first: Any, second: Any) -> None:
    """``torch.utils.swap_tensors`` without its refusal where somebody has a weak reference."""
    # A DTensor keeps its own part in a slot.
    for name in ("__class__", "__dict__", *copyreg._slotnames(type(first))):  # type: ignore[attr-defined]
        if hasattr(first, name) and hasattr(second, name):
            kept = getattr(first, name)
            setattr(first, name, getattr(second, name))
            setattr(second, name, kept)
    torch._C._swap_tensor_impl(first, second)


def _refuse_network(patches: Patches) -> None:
    """Open no connection and write no checkpoint until the patches are undone."""
    for name in ("connect", "connect_ex"):
        patches.set(socket.socket, name, _local_alone(getattr(socket.socket, name)))
    patches.set(socket, "create_connection", _refused)
    patches.set(socket, "getaddrinfo", _refused)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        patches.set_environment(name, "1")
    patches.set_environment("WANDB_MODE", "disabled")
    if importlib.util.find_spec("safetensors") is not None:
        home = importlib.import_module("safetensors.torch")
        for name in ("save_file", "save_model"):
            patches.set(home, name, _nothing)


def _local_alone(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    def local(own: socket.socket, address: Any) -> Any:
        # Workers of data loaders hand tensors over through a socket in the file system, which has a path.
        return connect(own, address) if isinstance(address, str | bytes) else _refused()

    return local


def _refused(*_: Any, **__: Any) -> Any:
    raise ConnectionError("a dry run opens no connection")


def _nothing(*_: Any, **__: Any) -> None:
    """Saves nothing."""
