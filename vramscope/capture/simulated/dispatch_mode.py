"""The dispatch mode that sees every operator of its thread, and looks at the storages of the results."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import enable_reentrant_dispatch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from vramscope.capture.storages import TRACERS, is_wrapper, storage_id, storage_of

if TYPE_CHECKING:
    from vramscope.capture.simulated.storages import Storages

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# torch.tensor, from_numpy …: the tensor was created in C++ just before.
_FRESH = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy"})


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
_n_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack


class DispatchMode(TorchDispatchMode):
    """Runs every operator unchanged, then checks its result; each thread has its own mode."""

    supports_higher_order_operators = True

    def __init__(self, storages: "Storages") -> None:
        super().__init__()
        self._storages = storages
        self._live = storages.live
        self._pid = os.getpid()
        self._wrappers: dict[type, bool] = {}
        self._operators: dict[Any, _Operator] = {}
        self._below: list[Any] = []
        self._popped: list[Any] = []
        self._is_entered = False
        """Whether ``join`` has ended, so that the mode was on the stack."""
        self._before: dict[str, Any] = {}
        """torch's flags from before this mode, by the name of the deque in which it stores them."""

    # Compiled regions stay so, without torch's wrapper, which imports torch._dynamo and takes 1 µs a call.
    ignore_compile_internals = staticmethod(lambda: True)
    _should_skip_dynamo = staticmethod(lambda: False)

    # A signal handler may raise between any two calls of ``join`` and ``leave``. Each may then be called
    # again, and completes what the interrupted call began.

    def join(self) -> None:
        """Observe the operators of the calling thread from here on."""
        if not any(mode is self for mode in _get_current_dispatch_mode_stack()):
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
            if any(kind.__module__.startswith(TRACERS) for kind in types):
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
            self._take_in(operator, new)
        except BaseException:
            # A signal handler may have raised. The result lives on if the program keeps the exception, whose
            # traceback refers to it; and a storage that was resized is an argument.
            self._take_in_surely(operator, (out, *args, *(kwargs or {}).values()))
            raise
        return out

    def _leave_late(self, *_: object) -> None:
        """Leave once the operator has ended, and torch put this mode on the stack again: nothing else can."""
        is_there = any(mode is self for mode in _get_current_dispatch_mode_stack())
        if is_there or not self._storages.quiet:
            sys.setprofile(None)
        if is_there and self._storages.quiet:
            with self._storages.guard:
                self.leave()

    def _take_in(self, operator: _Operator, out: Any) -> None:
        """Take in the result of an operator, or its storage where that is known to be new."""
        storages = self._storages
        if storages.quiet:  # another thread left the block of this one, or the recording failed
            # In a fork a thread that is gone may hold the lock.
            if sys.getprofile() is None and os.getpid() == self._pid:
                sys.setprofile(self._leave_late)
            return
        try:
            with storages.guard:
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
