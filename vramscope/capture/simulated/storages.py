"""Observes the creation and release of tensor storages on the CPU, which has no allocator history.

A dispatch mode sees every operator of its thread, including those inside backward and the optimizer, and
checks the storages of the results: an unknown one is new. A weak reference reports its release. Three things
are not seen: temporaries inside one operator, operators of other threads, the buffers of compiled code.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from vramscope.capture.hooks.gradients import gradients_of
from vramscope.capture.simulated.dispatch_mode import DispatchMode
from vramscope.capture.storages import is_wrapper, parts_of, storage_id, storage_of
from vramscope.capture.undisturbed import Guarded, is_of_a_signal_handler
from vramscope.capture.undisturbed.tracked import tracked_objects

if TYPE_CHECKING:
    from vramscope.capture.simulated import Simulated

_CPU = torch.device("cpu")
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


class Storages:
    """Tracks every known storage on the CPU by the address of its C++ object.

    If several threads see a storage for the first time at once, or a signal handler interrupts this code, the
    listener may receive the new storage twice, but it never misses one.
    """

    __slots__ = (
        "_modes", "_resize", "guard", "listener",
        "live", "n_born", "n_late", "n_too_deep", "quiet", "saw_fake",
    )  # fmt: skip

    def __init__(self, listener: "Simulated") -> None:
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
        self.guard = Guarded(listener.failed, lets_out=(RecursionError,))
        self._modes: dict[int, DispatchMode] = {}
        self._resize: Callable[..., Any] | None = None

    def enter_thread(self) -> None:
        """Observe the operators of the calling thread."""
        mode = self._modes.get(threading.get_ident())
        if mode is None:
            mode = self._modes[threading.get_ident()] = DispatchMode(self)
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

        *frozen* are those that the program hid from the collector by ``gc.freeze()``.
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
                return self.see(parts_of(out), frame)
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
            with self.guard:
                return self.take_in(storage, frame)
        except RecursionError:
            self.n_too_deep += 1
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


def _is_plain_tensor(kind: type) -> bool:
    return issubclass(kind, torch.Tensor) and not is_wrapper(kind)
