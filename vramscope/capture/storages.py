"""Observes the creation and release of tensor storages on the CPU, which has no allocator history.

A dispatch mode sees every operator of its thread, including those inside backward and the optimizer, and
checks the storages of the results: an unknown one is new. A weak reference reports its release. Three things
are not seen: temporaries inside one operator, operators of other threads, the buffers of compiled code.
"""

import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import enable_reentrant_dispatch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from vramscope.capture.hooks.gradients import gradients_of
from vramscope.capture.undisturbed import is_of_a_signal_handler
from vramscope.capture.undisturbed.tracked import tracked_objects

_MOST_INTERRUPTIONS = 1000
"""Bound for one storage, for a program whose signal handlers keep raising."""


class Life(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage with its size and addresses; it is dead once the storage is released."""

    __slots__ = ("address", "cdata", "maker", "n_bytes")
    cdata: int
    """Address of the C++ object. It is reused after release; data pointers are shared and change."""
    n_bytes: int
    address: int
    """Address of its block on the simulated device; 0 until it has one."""
    maker: int
    """Ident of the thread that allocated it; −1 where only one thread had begun phases."""


class StorageListener(Protocol):
    """Receives the events of storages in their order."""

    @property
    def died(self) -> Callable[[Life], None]:
        """A callback for a storage whose last tensor is gone: at any time, on any thread, within any code.

        It must be a C function. Python discards what a weak reference's callback raises, so if a signal
        handler ran within a callback in Python code, both the user's Ctrl-C and the event would be lost.
        """

    def born(self, life: Life, frame: FrameType | None) -> None:
        """A storage is new; *frame* is the caller's or None. This may be called twice for one storage."""

    def resized(self, life: Life, n_bytes: int, frame: FrameType | None) -> None:
        """A storage has changed its size, possibly to 0 bytes."""

    def failed(self, error: Exception) -> None:
        """An error of vramscope itself occurred."""


class Storages:
    """Tracks every known storage on the CPU by the address of its C++ object.

    If several threads see a storage for the first time at once, or a signal handler interrupts this code, the
    listener may receive the new storage twice, but it never misses one.
    """

    __slots__ = (
        "_modes", "_resize", "listener", "live", "n_born", "n_late", "n_too_deep", "quiet", "saw_fake",
    )  # fmt: skip

    def __init__(self, listener: StorageListener) -> None:
        self.live: dict[int, Life] = {}
        """The known storages; a released one stays until its address is reused or the listener removes it."""
        self.n_born = 0
        self.n_late = 0
        """Number of storages that were first seen when an operator returned a view of them."""
        self.n_too_deep = 0
        """Number of operators whose results were not checked because Python's recursion limit was reached."""
        self.saw_fake = False
        """Whether an operator of fake tensors ran, which have no memory."""
        self.quiet = False
        """Whether to ignore all further operators."""
        self.listener = listener
        self._modes: dict[int, _Mode] = {}
        self._resize: Callable[..., Any] | None = None

    def enter_thread(self) -> None:
        """Observe the operators of the calling thread."""
        mode = self._modes.get(threading.get_ident())
        if mode is None:
            mode = self._modes[threading.get_ident()] = _Mode(self)
        mode.join()

    def exit_thread(self) -> None:
        """Stop observing the operators of the calling thread."""
        mode = self._modes.get(threading.get_ident())
        if mode is not None:
            mode.leave()
            # Last, as a signal handler may interrupt this: then the block's end is repeated.
            self._modes.pop(threading.get_ident(), None)

    def wrap_resize(self) -> None:
        """Wrap ``UntypedStorage.resize_``, which is no operator (FSDP frees parameters with it)."""
        original = torch.UntypedStorage.resize_
        see, surely = self.see_storage, self.surely

        @functools.wraps(original)
        def resize_(storage: Any, size: int) -> Any:
            try:
                result = original(storage, size)
                see(storage, sys._getframe(1))
            except BaseException:
                surely(see, storage)  # a signal handler may have raised
                raise
            return result

        self._resize = resize_
        torch.UntypedStorage.resize_ = resize_

    def unwrap_resize(self) -> None:
        """Restore ``UntypedStorage.resize_``, unless someone else has wrapped it since."""
        if self._resize is not None and torch.UntypedStorage.__dict__.get("resize_") is self._resize:
            del torch.UntypedStorage.resize_
        self._resize = None

    def adopt(self, *, everything: bool, frozen: Sequence[Any] = ()) -> None:
        """Take in the tensors that the garbage collector tracks; only the young ones unless *everything*.

        Objects are selected by their exact type, as any other question may run their code.

        Parameters
        ----------
        frozen
            Further objects: those that the program hid from the collector by ``gc.freeze()``.
        """
        tensors: list[Any] = []
        for generation in (None,) if everything else (0, 1):
            tensors += tracked_objects(_is_plain_tensor, generation)
        if everything:
            tensors += [thing for thing in frozen if _is_plain_tensor(type(thing))]
        for tensor in tensors:
            self.see(tensor, None)
        for gradient in gradients_of(tensors):
            self.see(gradient, None)

    def knows(self, cdata: int) -> bool:
        """Whether the storage whose C++ object is at *cdata* now is known."""
        life = self.live.get(cdata)
        return life is not None and life() is not None

    def see(self, out: Any, frame: FrameType | None) -> int:
        """Take in a tensor or the result of an operator; returns the number of new storages."""
        if isinstance(out, torch.Tensor):
            try:
                known = self.knows(storage_id(out))
            except (NotImplementedError, RuntimeError):
                return self.see(_parts(out), frame)
            storage = None if known else storage_of(out)
            return 0 if storage is None else self.take_in(storage, frame)
        if type(out) in (tuple, list):
            return sum(self.see(item, frame) for item in out)
        return 0

    def see_again(self, out: Any, frame: FrameType | None) -> int:
        """Take in the result of an operator that may resize storages; returns the number of new ones."""
        if isinstance(out, torch.Tensor):
            storage = storage_of(out)
            return 0 if storage is None else self.take_in(storage, frame)
        if type(out) in (tuple, list):
            return sum(self.see_again(item, frame) for item in out)
        return 0

    def surely(self, see: Callable[..., Any], out: Any) -> None:
        """Call *see* for what an interrupted operator returned, while its exception is on its way.

        If a signal handler raises again here, its last exception comes out.
        """
        raised: BaseException | None = None
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                if isinstance(raised, Exception) and not is_of_a_signal_handler(raised):
                    return  # the exception that is on its way is the program's; this one is not
                if not self.quiet:
                    see(out, None)
                break
            except RecursionError:
                return
            except BaseException as interruption:  # noqa: BLE001 -- raised again below
                raised = interruption
        if raised is not None:
            raise raised

    def see_storage(self, storage: Any, frame: FrameType | None) -> bool:
        """Take in a storage that may be new or resized; returns whether it is new.

        Errors of vramscope go to the listener.
        """
        if self.quiet:
            return False
        try:
            return self.take_in(storage, frame)
        except RecursionError:
            self.n_too_deep += 1
            return False
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            self.listener.failed(error)
            return False

    def take_in(self, storage: Any, frame: FrameType | None) -> bool:
        """Take in a storage; returns whether it is new."""
        cdata, n_bytes = storage._cdata, storage.nbytes()
        life = self.live.get(cdata)
        if life is not None and life() is not None:
            if life.n_bytes != n_bytes:
                self.listener.resized(life, n_bytes, frame)
                life.n_bytes = n_bytes
        elif n_bytes and storage.device == _CPU:
            life = Life(storage, self.listener.died)
            life.cdata, life.n_bytes, life.address, life.maker = cdata, n_bytes, 0, -1
            # In this order: if interrupted in between, the storage is seen again and reported twice.
            self.listener.born(life, frame)
            self.live[cdata] = life
            self.n_born += 1
            return True
        return False


def storage_of(tensor: Any) -> Any:
    """The tensor's storage, or None if it has none of its own; runs no ``__torch_function__``.

    For a DTensor it is the storage of the local shard: the DTensor's own storage has no memory.
    """
    with torch._C.DisableTorchFunction():
        kind = type(tensor)
        is_plain = kind in PLAIN
        if not is_plain and hasattr(kind, "_local_tensor"):
            return storage_of(tensor._local_tensor)
        if not is_plain and kind.__module__.startswith(_TRACERS):
            return None  # accessing its memory would warn
        try:
            storage = tensor.untyped_storage()
            return None if not is_plain and is_wrapper(kind) and not storage.data_ptr() else storage
        except (NotImplementedError, RuntimeError):  # sparse tensors, wrapper subclasses
            return None


def storages_of(tensor: Any) -> list[Any]:
    """The tensor's storage, or those of its parts if it has none of its own."""
    storage = storage_of(tensor)
    if storage is not None:
        return [storage]
    parts = [storage_of(part) for part in _parts(tensor)] if tensor.layout != torch.strided else []
    return [part for part in parts if part is not None]


def _is_plain_tensor(kind: type) -> bool:
    return issubclass(kind, torch.Tensor) and not is_wrapper(kind)


def is_wrapper(kind: type) -> bool:
    """Whether a tensor class has its own dispatch and only wraps others: DTensor, FakeTensor …"""
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


storage_id: Callable[[Any], int] = getattr(torch._C, "_storage_id", lambda tensor: storage_of(tensor)._cdata)
"""The address of the tensor's C++ storage; a tenth of the time of ``storage_of``."""


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
    """Properties of an operator that its schema shows, about the storages that it returns."""

    views: bool
    """Whether it returns an argument's storage: an unknown storage is then older than this call."""
    resizes: bool
    """Whether it may resize the storage of its result."""
    is_composite: bool
    """Whether autograd decomposes it before the mode sees it.

    In inference mode the CPU runs it whole, so it is decomposed there as well; otherwise the allocations
    inside it would be missed.
    """


PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors that wrap no other tensor."""
# FakeTensor and FunctionalTensor: what torch.export and torch.compile trace with.
_TRACERS = "torch._subclasses."

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# torch.tensor, from_numpy …: the tensor was created in C++ just before.
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


# Where torch's mode stores the state from before it, and the global variable that has the current state:
# torch ≥ 2.4 has the first, newer versions all.
_FLAGS = {
    "old_dispatch_mode_flags": "_is_in_torch_dispatch_mode",
    "old_non_infra_dispatch_mode_flags": "_is_in_non_infra_torch_dispatch_mode",
    "old_without_ignore_compile_internals_dispatch_mode_flags": (
        "_is_in_any_mode_without_ignore_compile_internals"
    ),
}
_CPU = torch.device("cpu")
_n_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack


class _Mode(TorchDispatchMode):
    """Runs every operator unchanged, then checks its result; each thread has its own mode."""

    supports_higher_order_operators = True

    def __init__(self, storages: Storages) -> None:
        super().__init__()
        self._storages = storages
        self._live = storages.live
        self._wrappers: dict[type, bool] = {}
        self._operators: dict[Any, _Operator] = {}
        self._below: list[Any] = []
        self._popped: list[Any] = []
        self._is_entered = False
        """Whether ``join`` has ended, so that the mode was on the stack."""
        self._before: dict[str, Any] = {}
        """torch's flags from before this mode, by the name of the deque in which it stores them."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled regions compiled; under other modes torch.compile falls back to eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid torch's wrapper, which imports torch._dynamo and costs 1 µs a call."""
        return False

    # A signal handler may raise between any two calls of ``join`` and ``leave``. Each may then be called
    # again, and completes what the interrupted call began.

    def is_on_stack(self) -> bool:
        """Whether the mode observes the operators of the calling thread."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def join(self) -> None:
        """Observe the operators of the calling thread from here on."""
        if not self.is_on_stack():
            self._undo_interrupted_join()
            self._below = list(_get_current_dispatch_mode_stack())
            self._before = {name: getattr(_python_dispatch, now, None) for name, now in _FLAGS.items()}
            self.__enter__()
            self._is_entered = True

    def leave(self) -> None:
        """Stop observing, in whatever order the program leaves the block and its own modes."""
        stack = _get_current_dispatch_mode_stack()
        if any(mode is self for mode in stack):
            self._restore_flags()
            if stack[-1] is self:
                self.__exit__(None, None, None)
            else:
                self._leave_from_below(stack)
        elif self._is_entered and self._before and all(self._flags()):
            self._leave_for_another()
        else:
            self._undo_interrupted_join()
        self._before = {}

    def _flags(self) -> list[Any]:
        """The deques in which torch's mode stores the state from before it."""
        return [flags for name in _FLAGS if (flags := getattr(self, name, None)) is not None]

    def _forgotten(self) -> Iterator[None]:
        """Clears every deque as it is consumed, in C code."""
        return map(deque.clear, self._flags())

    def _restore_flags(self) -> None:
        """Store the state from before this mode again, as an interrupted ``leave`` may have taken it."""
        for name, before in self._before.items():
            flags = getattr(self, name, None)
            if flags is not None:
                flags.extend([before] * (not flags))

    def _undo_interrupted_join(self) -> None:
        """Restore torch's flags if torch set them, and was interrupted before the mode was on the stack."""
        for name, before in self._before.items():
            flags = getattr(self, name, None)
            if flags:
                setattr(_python_dispatch, _FLAGS[name], before)
                flags.clear()

    def _leave_from_below(self, stack: Sequence[Any]) -> None:
        """Remove only this mode; the modes that the program entered within the block stay."""
        above = stack[next(at for at, mode in enumerate(stack) if mode is self) + 1 :]
        # The next mode above must restore the state from before this mode, not the state with it.
        for name in _FLAGS:
            mine, theirs = getattr(self, name, None), getattr(above[0], name, None)
            if mine and theirs:
                theirs[-1] = mine[-1]
        # torch keeps its own modes elsewhere, and lists them last.
        users = [mode for mode in above if getattr(mode, "_mode_key", None) is None]
        # One call of C code, which no signal handler interrupts.
        deque(chain(map(_pop, [None] * (len(users) + 1)), map(_push, users), self._forgotten()), maxlen=0)

    def _leave_for_another(self) -> None:
        """Correct the stack after the program left, within the block, a mode from before it.

        torch removed the top mode, this one, in its place; now that other mode is removed.
        """
        stack = _get_current_dispatch_mode_stack()
        if stack and any(mode is stack[-1] for mode in self._below):
            # Popped and known as popped by one call of C code: an interrupted call is repeated.
            self._popped.extend(map(_pop, [None] * (not self._popped)))
        deque(self._forgotten(), maxlen=0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and any(self._is_wrapper(kind) for kind in types):
            if any(kind.__module__.startswith(_TRACERS) for kind in types):
                # These have no memory, and must be called directly; other wrappers handle the call
                # themselves.
                self._storages.saw_fake = True
                return func(*args, **(kwargs or {}))
            # These unwrap themselves, and the operators on the inner tensors come back to this mode.
            return NotImplemented
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = _operator(func)
        if operator.is_composite and torch.is_inference_mode_enabled():
            # The dispatch state of the call is restored, or views lose their bases and matmul takes another
            # path. The C++ kernel is called, as func.decompose() may take a Python one that rounds
            # differently.
            with enable_reentrant_dispatch(), self:
                return func._op_dk(_COMPOSITE, *args, **(kwargs or {}))
        out = None
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
            new = out
            # Most operators return a known storage; this early return saves a fifth of the mode's time.
            if type(out) is torch.Tensor and not operator.resizes:
                try:
                    life = self._live.get(storage_id(out))
                    if life is not None and life() is not None:
                        return out
                    # Under a mode of torch functions the program would see this call.
                    new = storage_of(out) if _n_function_modes() else out.untyped_storage()
                except (NotImplementedError, RuntimeError):  # a sparse tensor has two storages
                    pass
            if not self._storages.quiet:
                self._take_in(operator, new)
        except BaseException:
            # A signal handler may have raised. The result lives on if the program keeps the exception, whose
            # traceback refers to it; and a storage that was resized is an argument.
            self._take_in_surely(operator, (out, *args, *(kwargs or {}).values()))
            raise
        return out

    def _take_in(self, operator: _Operator, out: Any) -> None:
        """Take in the result of an operator, or its storage where that is known to be new."""
        storages = self._storages
        try:
            frame = sys._getframe(2)
            if type(out) is torch.UntypedStorage:
                n_new = int(storages.take_in(out, frame))
            else:
                see = storages.see_again if operator.resizes else storages.see
                n_new = see(out, frame)
            if operator.views:
                storages.n_late += n_new
        except RecursionError:
            # No call here: it could exceed the recursion limit again.
            storages.n_too_deep += 1
        except Exception as error:
            if is_of_a_signal_handler(error):
                raise
            storages.listener.failed(error)

    def _take_in_surely(self, operator: _Operator, found: tuple[Any, ...]) -> None:
        """Take in the result and perhaps the arguments of an interrupted operator, the result first."""
        storages = self._storages
        if operator.resizes:
            storages.surely(storages.see_again, found)
        else:
            storages.surely(storages.see, found[0])

    def _is_wrapper(self, kind: type) -> bool:
        found = self._wrappers.get(kind)
        if found is None:
            found = self._wrappers[kind] = is_wrapper(kind)
        return found
