"""When is a tensor's storage born, and when does it die? On the CPU, where no allocator tells.

A dispatch mode sees every operator of its thread, also inside backward and inside the optimizer, and looks
at the storages of what is returned: an unknown one is a birth. A weak reference tells the death. What cannot
be seen: temporaries inside one operator, operators of other threads, the buffers of compiled code.
"""

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import enable_reentrant_dispatch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from vramscope.capture.gradients import gradients_of
from vramscope.capture.undisturbed import is_of_a_signal_handler


class Life(weakref.ref):  # type: ignore[type-arg]
    """A storage's weak reference with what we know of it; dead as soon as the storage is."""

    __slots__ = ("address", "cdata", "n_bytes")
    cdata: int
    """Address of the C++ half: dead storages' are used again, data pointers are shared and change."""
    n_bytes: int
    address: int
    """Of its block on the simulated device; 0 until it was placed there."""


class StorageListener(Protocol):
    """Told about storages, in the order of events."""

    @property
    def died(self) -> Callable[[Life], None]:
        """Called when the last tensor on a storage is gone: at any time, on any thread, within anything.

        It must be a function written in C. Python discards what a weak reference's callback raises, so a
        signal handler that runs within one of Python code loses the user's Ctrl-C, and us the event.
        """

    def born(self, life: Life, frame: FrameType | None) -> None:
        """A new storage; *frame* of the caller, None where unknown. May come twice for one storage."""

    def resized(self, life: Life, n_bytes: int, frame: FrameType | None) -> None:
        """It has another size now, and 0 bytes is a size."""

    def failed(self, error: Exception) -> None:
        """Something of ours went wrong."""


class Storages:
    """Every storage on the CPU that we know, by the address of its C++ half.

    Several threads may see one storage for the first time at once, and a signal handler may interrupt
    anything here: then it is born twice for the listener, never forgotten.
    """

    __slots__ = ("_modes", "_resize", "listener", "live", "n_born", "n_late", "n_too_deep", "quiet")

    def __init__(self, listener: StorageListener) -> None:
        self.live: dict[int, Life] = {}
        """Also storages that died, until another has their address or the listener takes them out."""
        self.n_born = 0
        self.n_late = 0
        """Storages that some operator returned a view of, though their birth was not seen."""
        self.n_too_deep = 0
        """Operators that were not looked at: there was no room below Python's recursion limit."""
        self.quiet = False
        """Look at nothing any more."""
        self.listener = listener
        self._modes: dict[int, _Mode] = {}
        self._resize: Callable[..., Any] | None = None

    def enter_thread(self) -> None:
        """See the operators of the calling thread."""
        mode = self._modes.get(threading.get_ident())
        if mode is None:
            mode = self._modes[threading.get_ident()] = _Mode(self)
        mode.join()

    def exit_thread(self) -> None:
        """No longer see the operators of the calling thread."""
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.leave()

    def wrap_resize(self) -> None:
        """``UntypedStorage.resize_`` passes no operator (FSDP frees parameters with it)."""
        original = torch.UntypedStorage.resize_
        see = self.see_storage

        @functools.wraps(original)
        def resize_(storage: Any, size: int) -> Any:
            result = original(storage, size)
            see(storage, sys._getframe(1))
            return result

        self._resize = resize_
        torch.UntypedStorage.resize_ = resize_

    def unwrap_resize(self) -> None:
        """Restore it, unless somebody wrapped ours since."""
        if self._resize is not None and torch.UntypedStorage.__dict__.get("resize_") is self._resize:
            del torch.UntypedStorage.resize_
        self._resize = None

    def adopt(self, *, everything: bool) -> None:
        """Take in the tensors that Python can reach; else only the young ones.

        Looks at objects by their exact type: asking a stranger's object anything may run its code.
        """
        wanted: dict[type, bool] = {}
        tensors = []
        # One list after the other: a list that is being built would find itself in the next, and live on.
        for generation in (None,) if everything else (0, 1):
            for thing in gc.get_objects(generation):
                kind = type(thing)
                if kind not in wanted:
                    wanted[kind] = issubclass(kind, torch.Tensor) and not is_wrapper(kind)
                if wanted[kind]:
                    tensors.append(thing)
        for tensor in tensors:
            self.see(tensor, None)
        for gradient in gradients_of(tensors):
            self.see(gradient, None)

    def knows(self, cdata: int) -> bool:
        """Whether the storage that has its C++ half there now is known."""
        life = self.live.get(cdata)
        return life is not None and life() is not None

    def see(self, out: Any, frame: FrameType | None) -> int:
        """A tensor, or what an operator returned; how many of its storages are new."""
        if isinstance(out, torch.Tensor):
            try:
                known = self.knows(_storage_id(out))
            except (NotImplementedError, RuntimeError):
                return self.see(_parts(out), frame)
            storage = None if known else storage_of(out)
            return 0 if storage is None else self._see_storage(storage, frame)
        if type(out) in (tuple, list):
            return sum(self.see(item, frame) for item in out)
        return 0

    def see_again(self, out: Any, frame: FrameType | None) -> int:
        """What an operator returned that may have changed the size of a storage; how many are new."""
        if isinstance(out, torch.Tensor):
            storage = storage_of(out)
            return 0 if storage is None else self._see_storage(storage, frame)
        if type(out) in (tuple, list):
            return sum(self.see_again(item, frame) for item in out)
        return 0

    def see_storage(self, storage: Any, frame: FrameType | None) -> bool:
        """A storage that may be new, or have a new size; whether it is new. Never raises an error of ours."""
        if self.quiet:
            return False
        try:
            return self._see_storage(storage, frame)
        except RecursionError:
            self.n_too_deep += 1
            return False
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self.listener.failed(error)
            return False

    def _see_storage(self, storage: Any, frame: FrameType | None) -> bool:
        """Whether it is new."""
        cdata, n_bytes = storage._cdata, storage.nbytes()
        life = self.live.get(cdata)
        if life is not None and life() is not None:
            if life.n_bytes != n_bytes:
                self.listener.resized(life, n_bytes, frame)
                life.n_bytes = n_bytes
        elif n_bytes and storage.device.type == "cpu":
            life = Life(storage, self.listener.died)
            life.cdata, life.n_bytes, life.address = cdata, n_bytes, 0
            # In this order: interrupted in between, it is seen again, and born twice.
            self.listener.born(life, frame)
            self.live[cdata] = life
            self.n_born += 1
            return True
        return False


def storage_of(tensor: Any) -> Any:
    """The tensor's storage, None where it has none of its own; runs no ``__torch_function__``.

    A DTensor's is that of the part which lies here: it has another in its own name, without memory.
    """
    with torch._C.DisableTorchFunction():
        kind = type(tensor)
        if hasattr(kind, "_local_tensor"):
            return storage_of(tensor._local_tensor)
        if kind.__module__.startswith(_TRACERS):
            return None  # asked for its memory, it warns
        try:
            storage = tensor.untyped_storage()
            return None if is_wrapper(kind) and not storage.data_ptr() else storage
        except (NotImplementedError, RuntimeError):  # sparse tensors, wrapper subclasses
            return None


def storages_of(tensor: Any) -> list[Any]:
    """The tensor's storage, or those of its parts where it has none of its own."""
    storage = storage_of(tensor)
    if storage is not None:
        return [storage]
    parts = [storage_of(part) for part in _parts(tensor)] if tensor.layout != torch.strided else []
    return [part for part in parts if part is not None]


def is_wrapper(kind: type) -> bool:
    """A tensor class that dispatches by itself and only wraps others: DTensor, FakeTensor …"""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


_storage_id: Callable[[Any], int] = getattr(torch._C, "_storage_id", lambda tensor: storage_of(tensor)._cdata)


def _parts(tensor: Any) -> list[Any]:
    """The plain tensors that make up a sparse one."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


class _Operator(NamedTuple):
    """What an operator's schema tells about the storages that it returns."""

    views: bool
    """It returns what it was given: an unknown storage is older than this call."""
    resizes: bool
    """It may give another size to the storage of what it returns."""
    is_composite: bool
    """Autograd takes it apart before we see it, but in inference mode the CPU runs it whole: take it apart
    there as well, or what it allocates inside is lost."""


# FakeTensor and FunctionalTensor: what torch.export and torch.compile trace with.
_TRACERS = "torch._subclasses."

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# torch.tensor, from_numpy …: the tensor was made in C++ just before.
_FRESH = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy"})


def _operator(func: Any) -> _Operator:
    if not isinstance(func, torch._ops.OpOverload):
        return _Operator(views=False, resizes=False, is_composite=False)
    schema, has = func._schema, torch._C._dispatch_has_kernel_for_dispatch_key
    return _Operator(
        views=any(out.alias_info is not None for out in schema.returns) and schema.name not in _FRESH,
        resizes="resize" in schema.name or "set_" in schema.name or any(a.is_out for a in schema.arguments),
        is_composite=has(func.name(), "CompositeImplicitAutograd") and not has(func.name(), "CPU"),
    )


# What torch's mode remembers of the time before it: torch ≥ 2.4 has the first, newer ones all.
_FLAGS = (
    "old_dispatch_mode_flags",
    "old_non_infra_dispatch_mode_flags",
    "old_without_ignore_compile_internals_dispatch_mode_flags",
)


class _Mode(TorchDispatchMode):
    """Runs every operator as it is, then looks at what it returned. Each thread has one of its own."""

    supports_higher_order_operators = True

    def __init__(self, storages: Storages) -> None:
        super().__init__()
        self._storages = storages
        self._live = storages.live
        self._wrappers: dict[type, bool] = {}
        self._operators: dict[Any, _Operator] = {}
        self._below: list[Any] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled; under other modes torch.compile falls back to eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by torch's wrapper: it imports torch._dynamo, and costs 1 µs a call."""
        return False

    def is_on_stack(self) -> bool:
        """Whether it sees the operators of the calling thread."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def join(self) -> None:
        """See the operators of the calling thread from here on."""
        if not self.is_on_stack():
            self._below = list(_get_current_dispatch_mode_stack())
            self.__enter__()

    def leave(self) -> None:
        """No longer see them, in whatever order the program leaves our block and its own modes."""
        stack = _get_current_dispatch_mode_stack()
        if stack and stack[-1] is self:
            self.__exit__(None, None, None)
        elif self.is_on_stack():
            self._leave_from_below()
        else:
            self._leave_for_another()

    def _leave_from_below(self) -> None:
        """Modes that the program entered within our block, and leaves after it, stay."""
        above: list[Any] = []
        try:
            while (mode := _pop_mode()) is not self:
                above.append(mode)
            # What was so before us is what the next one above has to restore, not what was so with us.
            for name in _FLAGS:
                mine, theirs = getattr(self, name, None), getattr(above[-1], name, None)
                if mine and theirs:
                    theirs[-1] = mine.pop()
        finally:
            while above:
                _push_mode(above.pop())

    def _leave_for_another(self) -> None:
        """A mode from before our block was left within it, and torch took the top one, ours, off in its
        place: now it takes ours."""
        for name in _FLAGS:
            flags = getattr(self, name, None)
            if flags:
                flags.pop()
        stack = _get_current_dispatch_mode_stack()
        if stack and any(mode is stack[-1] for mode in self._below):
            _pop_mode()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(self._is_wrapper(kind) for kind in types):
            if any(kind.__module__.startswith(_TRACERS) for kind in types):
                # No memory; and they count on being called, where others take their turn.
                return func(*args, **(kwargs or {}))
            # They take themselves apart, and the inner tensors come back to us.
            return NotImplemented
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = _operator(func)
        if operator.is_composite and torch.is_inference_mode_enabled():
            # With the dispatch state of the call, or views lose their bases, and matmul then takes another
            # way; the C++ kernel, as func.decompose() may take one written in Python with other rounding.
            with enable_reentrant_dispatch(), self:
                return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        out = func(*args, **kwargs) if kwargs else func(*args)
        # Most operators return a storage that is known; this way out saves a fifth of our time.
        if type(out) is torch.Tensor and not operator.resizes:
            try:
                life = self._live.get(_storage_id(out))
                if life is not None and life() is not None:
                    return out
            except (NotImplementedError, RuntimeError):  # sparse: it has two storages
                pass
        if not self._storages.quiet:
            self._take_in(operator, out)
        return out

    def _take_in(self, operator: _Operator, out: Any) -> None:
        storages = self._storages
        try:
            see = storages.see_again if operator.resizes else storages.see
            n_new = see(out, sys._getframe(2))
            if operator.views:
                storages.n_late += n_new
        except RecursionError:
            # Nothing may be called here: there is no room for that either.
            storages.n_too_deep += 1
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            storages.listener.failed(error)

    def _is_wrapper(self, kind: type) -> bool:
        found = self._wrappers.get(kind)
        if found is None:
            found = self._wrappers[kind] = is_wrapper(kind)
        return found
