"""Runs every operator of a program without computing: shapes on the device, real numbers on the host.

What lies on ``cuda`` is a fake tensor on our own device. On the host, parameters and large tensors are fake
too; small ones are real, so that data loaders, random choices and counters of the program work as they are.
"""

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from vramscope.prediction.dry.doubts import Certainty, Doubts
from vramscope.prediction.dry.in_place import IN_PLACE
from vramscope.prediction.dry.operators import (
    NOTHING,
    OwnMemory,
    RunSoFar,
    embedding,
    losses,
    matmul,
    moving,
    own_memory_of,
    recurrent,
)
from vramscope.prediction.dry.shapes import ShapeMemo
from vramscope.prediction.dry.shim import ranks
from vramscope.prediction.dry.shim.own_device import NAME, device_of, is_own, is_pinned, lies_there, pin
from vramscope.prediction.dry.shim.replacements import WHOLE, replacements
from vramscope.prediction.dry.values import known
from vramscope.prediction.dry.values.host_values import HostValues
from vramscope.prediction.dry.values.unknown import assume

if TYPE_CHECKING:
    from vramscope.prediction.dry.dry_capture import Predicted

Unknown = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What an operator raises whose result no dry run can know."""
OutOfMemoryError = torch.OutOfMemoryError
_SHAPES = matmul.SHAPES | recurrent.SHAPES | moving.SHAPES | embedding.SHAPES
"""How big results are, where torch does not say it of a device without content."""

# A data loader's batch and a dataset's index are smaller, a layer of a model is larger; integers may be
# tokens or a permutation of a whole dataset, which must be real.
_LARGEST_REAL_FLOATS = 1 << 20
_LARGEST_REAL_INTEGERS = 1 << 26

_FACTORIES = frozenset(
    {"aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::rand", "aten::randn",
    "aten::empty_strided",
     "aten::randint", "aten::arange", "aten::eye", "aten::linspace"}
)  # fmt: skip


Event: TypeAlias = tuple[str, Any]
"""``made`` and a storage; ``made_as``, and it with its bytes; ``taken``, ``given`` or ``kept`` and bytes."""


# Fill a tensor and return it; torch's formula for their shapes makes and copies another one.
_FILLING = frozenset({"aten::normal_", "aten::uniform_", "aten::zero_"})
_SIZED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_ADD = torch.ops.aten.add.Tensor
_DEVICE = torch.ops.prim.device.default
_EMPTY = torch.ops.aten.empty_strided.default
_PACK = torch.ops.aten._pack_padded_sequence.default
# torch's formula takes 0.1 s for Adam's 300 roots, and refuses numbers in a fake tensor for the others.
_OF_EACH = dict.fromkeys(("aten::_foreach_addcdiv", "aten::_foreach_addcmul"), torch.ops.aten.neg.default)
_OF_EACH["aten::_foreach_sqrt"] = torch.ops.aten.sqrt.default
_HOST = torch.device("cpu")
_IS_PINNED = torch.ops.aten.is_pinned.default
_SPARSE = "how many rows a sparse tensor has depends on values that a dry run does not have"


class _OneMode(FakeTensorMode):
    """The fake mode, which copies of its tensors share.

    ``copy.deepcopy(net)`` copies what its tensors refer to; of another mode, torch takes them for real ones.
    """

    def __deepcopy__(self, _: dict[int, Any]) -> "_OneMode":
        return self


class DryMode(TorchDispatchMode):
    """The mode of one dry run."""

    def __init__(self, device: torch.device, doubts: Doubts, so_far: RunSoFar) -> None:
        super().__init__()
        self.device = device
        self.doubts = doubts
        self.so_far = so_far
        self.listener: Predicted | None = None
        # Without a formula for its shapes an operator would be run on real zeros of our device, which ends
        # the process: it is refused instead.
        self.fake = _OneMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        # It remembers each tensor by a weak reference, for which torch then refuses to move a module's
        # parameters.
        self.fake.fake_tensor_converter.set_tensor_memo = lambda *_: None
        # Its own is slower than working the shapes out once and remembering them here.
        self.fake.cache_enabled = False
        self._shapes = ShapeMemo(self._run_fake)
        self._host_values = HostValues(so_far, self._gathers)
        self.is_inside = False
        """An operator is being run: torch's own code asks for devices now, not the program."""
        self.pending: BaseException | None = None
        self.operator = ""
        """The operator that took or gave memory last."""
        self._alone: tuple[int, ...] = ()
        """References to a gradient that nobody but the engine holds, counted here."""

    # Nothing is compiled in a dry run; torch's wrapper would import its compiler (1 s) and take 10 µs a call.
    ignore_compile_internals = staticmethod(lambda: True)
    _should_skip_dynamo = staticmethod(lambda: False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return device_of(args[0])  # two of three calls; torch's C++ asks for every argument
        was_inside, self.is_inside = self.is_inside, True
        is_made_pinned = kwargs is not None and kwargs.pop("pin_memory", False)
        try:
            out = is_pinned(args[0]) if func is _IS_PINNED else self._run(func, types, args, kwargs or {})
            return pin(out) if is_made_pinned else out
        except BaseException as error:
            if not self.so_far.is_backward:
                raise
            self.postpone(error)
            return self._something(func, args)
        finally:
            self.is_inside = was_inside

    def postpone(self, error: BaseException) -> None:
        """Raise *error* when backward is over; until then nothing is reported.

        Raised inside of the engine it would pass torch's guard of our device, which ends the process then.
        """
        self.pending = self.pending or error

    def raise_pending(self) -> None:
        """What happened in the backward that is over."""
        error, self.pending = self.pending, None
        if error is not None:
            raise error

    def _something(self, func: Any, args: Any) -> Any:
        """Any tensors of the right number: the engine goes on to the end of a backward that has failed."""
        given = [one for one in args if isinstance(one, torch.Tensor)]
        like = given[1 if "backward" in func._schema.name and len(given) > 1 else 0]
        with self.fake:
            found = [torch.empty_like(like) for _ in func._schema.returns]
        return found[0] if len(found) == 1 else tuple(found)

    def _run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if is_wrapped(types):
            return func(*args, **kwargs) if func.namespace == "prim" else NotImplemented
        if func.namespace in ("prim", "c10d"):
            return func(*args, **kwargs) if func.namespace == "prim" else ranks.answer(func, args)
        if func is _ADD and self._is_gradient_alone(args, kwargs):
            known.forget(args[0])
            return args[0]
        if self.so_far.is_backward and func in IN_PLACE and IN_PLACE[func].is_meant():
            func = IN_PLACE[func].func
        is_real = self._is_of_host(types, kwargs)
        if is_real and not self._is_large(func, args, kwargs):
            return self._on_host(func, args, kwargs)
        answer = self._host_values.answer(func, args, kwargs)
        if answer is not None:
            return answer[0]
        apart = _parts_of(func) if torch.is_inference_mode_enabled() else None
        if func is _PACK and known.value_of(args[1]) is not None:
            apart = partial(_PACK._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)  # its own C++
        return self._shaped(func, args, kwargs) if apart is None else self._apart(apart, args, kwargs)

    def _apart(self, parts: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        with self:
            return parts(*args, **kwargs)

    def _is_of_host(self, types: Any, kwargs: dict[str, Any]) -> bool:
        """Whether a call is about the host alone; its device becomes the one that stands for it."""
        device = kwargs.get("device")
        if device is not None:
            device = kwargs["device"] = self.own(device)
        if kwargs.get("generator") is not None and (
            device is None or device.type == NAME or FakeTensor in types
        ):
            kwargs["generator"] = None
        return FakeTensor not in types and (device is None or device.type == "cpu")

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it: values of the host are real, but for those that came from the device."""
        out = func(*args, **kwargs)
        if (
            self._host_values.has_unknown
            and known.spread(func, args, kwargs, out)
            and _SIZED & set(func.tags)
        ):
            name = func._schema.name.replace("::", ".")
            assume(name, "zeros of the device", sys._getframe(3))
        return out

    def learn_references(self) -> None:
        """Count them once, in a backward where two gradients are added that nobody else holds."""
        leaf = torch.zeros(2, device=self.device, requires_grad=True)
        twice = leaf * 2
        self._alone = (-1,)
        total = (twice.sin() + twice.cos()).sum()
        # Run by torch's engine itself: this is no backward of the program.
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((total,), (torch.ones_like(total),), False, False, (), accumulate_grad=True)

    def _is_gradient_alone(self, args: Any, kwargs: Any) -> bool:
        """Whether autograd's engine adds to a gradient of its own: CUDA then adds in place.

        To a subclass of tensors, as fakes are one, the engine adds out of place.
        """
        if not self.so_far.is_backward or torch.is_grad_enabled() or kwargs or not self._alone:
            return False
        one, other = args[:2]
        if not (is_own(one) and is_own(other) and one.shape == other.shape and one.dtype == other.dtype):
            return False
        if one.layout is not torch.strided:
            return False
        storage = one.untyped_storage()
        found = (one._use_count(), sys.getrefcount(one), torch._C._storage_Use_Count(storage._cdata))
        del storage
        if self._alone == (-1,):
            self._alone = found
        return found == self._alone

    def own(self, device: Any) -> torch.device:
        """The device that stands for it: ours for any ``cuda``."""
        device = torch.device(device)
        return self.device if device.type in ("cuda", NAME) else device

    def _is_large(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        if func._schema.name not in _FACTORIES or not args:
            return False
        size: Any = args[0] if type(args[0]) in (list, tuple, torch.Size) else args[1] if len(args) > 1 else 0
        if func._schema.name == "aten::randint":
            size = next((one for one in args if type(one) in (list, tuple, torch.Size)), ())
        if type(size) not in (list, tuple, torch.Size):
            return False
        count = 1
        for one in size:
            count *= one if type(one) is int else 1
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return count > (_LARGEST_REAL_FLOATS if dtype.is_floating_point else _LARGEST_REAL_INTEGERS)

    def fake_of(self, tensor: Any) -> Any:
        """A fake of a real tensor of the host, with its shape and nothing of its values."""
        with torch._C.DisableTorchFunction():
            return self._shapes(
                _EMPTY, (tensor.shape, tensor.stride()), {"dtype": tensor.dtype, "device": _HOST}
            )

    def _faked(self, value: Any) -> Any:
        """Arguments with every real tensor as a fake: its value must not be computed with."""
        if isinstance(value, torch.Tensor):
            return value if type(value) is FakeTensor else self._fake_inside(value)
        if type(value) in (list, tuple):
            return type(value)(self._faked(one) for one in value)
        return value

    def _fake_inside(self, tensor: Any) -> Any:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if not known.is_tainted(tensor):
            known.know(made, tensor)
        return made

    def knows_of_unknown(self) -> None:
        """Note that a tensor of the host has values that come from the device."""
        self._host_values.has_unknown = True

    def _gathers(self, n_bytes: int) -> None:
        """Report what a copy to the host takes, of a tensor that is not contiguous."""
        if self.listener is not None:
            self.listener.works([("taken", n_bytes)], 0, sys._getframe(5))

    def _shaped(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            name = func._schema.name
            if name in _FILLING and args[0].is_floating_point():
                out = args[0]
            elif not func._schema.returns and name.startswith("aten::_foreach_"):
                out = None  # it changes what it is given: torch's formula takes 0.1 s for 300 tensors
            elif name in losses.SIZES:
                with torch._C.DisableTorchFunction(), self.fake:
                    made = [
                        torch.empty(size, dtype=dtype, device=self.device)
                        for size, dtype in losses.SIZES[name](*args)
                    ]
                out = made[0] if len(made) == 1 else tuple(made)
            elif name in _OF_EACH:
                with torch._C.DisableTorchFunction():
                    out = [self._shapes(_OF_EACH[name], (one,), {}) for one in args[0]]
            else:
                with torch._C.DisableTorchFunction():
                    out = self._shapes(func, args, kwargs)
        except Unknown as error:
            out = self._of_known(func, args, kwargs)
            if out is None:
                return self._refused(func, error)
        known.follow(func, args, kwargs, out)
        if self.pending is None:
            self._look(func, args, kwargs, out)
        return out

    def _of_known(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A result whose size follows from values that are known; None for any other."""
        real = known.computed(func, args, kwargs)
        if real is None:
            return None
        with torch._C.DisableTorchFunction(), self.fake:
            made = [
                torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=self.device)
                for one in known.tensors((real,))
            ]
        return made[0] if isinstance(real, torch.Tensor) else type(real)(made)

    def _run_fake(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.fake:
            return _SHAPES.get(func, func)(
                *self._faked(args), **{name: self._faked(one) for name, one in kwargs.items()}
            )

    def _refused(self, func: Any, error: Exception) -> Any:
        self.doubts.add(
            Certainty.CANNOT_TELL,
            func._schema.name.replace("::", "."),
            "what comes out of it depends on values that a dry run does not have",
            sys._getframe(4),
        )
        raise error

    def _look(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        listener, frame = self.listener, sys._getframe(4)
        if listener is None or not _is_of_the_card(args, kwargs, out):
            return
        extra = own_memory_of(func, args, kwargs, out, self.so_far)
        if type(out) is FakeTensor and out.layout is not torch.strided:
            self.doubts.add(Certainty.CANNOT_TELL, func._schema.name.replace("::", "."), _SPARSE, frame)
        if extra.doubt is not None:
            self.doubts.add(extra.doubt[0], func._schema.name.replace("::", "."), extra.doubt[1], frame)
        if extra is NOTHING and func.is_view:
            return  # no storage is new
        events = _events(extra, out)
        if events:
            self.operator = func._schema.name
            listener.works(events, extra.perhaps, frame)


def _is_of_the_card(*values: Any) -> bool:
    """Whether a tensor on our device is given or returned: work of the host alone costs the card nothing."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if device_of(value).type == NAME:
                return True
        elif ((kind is tuple or kind is list) and _is_of_the_card(*value)) or (
            kind is dict and _is_of_the_card(*value.values())
        ):
            return True
    return False


@cache
def _parts_of(func: Any) -> Callable[..., Any] | None:
    """What autograd makes of a composite operator; None for any other.

    Inference mode leaves autograd out, and hands the operator on as a whole.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return None
    name = func.name().removeprefix("aten::")
    if name in WHOLE:
        return None
    done: Callable[..., Any] | None = replacements().get(name)
    if done is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    ):
        done = func.decompose
    return done


def _events(extra: OwnMemory, out: Any) -> list[Event]:
    """What an operator does, in its order: its outputs as storages, and its own memory in bytes."""
    if extra is NOTHING:
        return [("made", one.untyped_storage()) for one in tensors_of(out) if lies_there(one)]
    outs = out if isinstance(out, list | tuple) else (out,)
    found: list[Event] = []
    if extra.plan:
        for kind, value in extra.plan:
            if kind == "made_as":
                found.append((kind, (outs[value[0]].untyped_storage(), value[1])))
            elif kind != "made":
                found.append((kind, value))
            elif lies_there(outs[value]):
                found.append((kind, outs[value].untyped_storage()))
    else:
        found += (("taken", n) for n in extra.before)
        made = [outs[place] for place in extra.order if place < len(outs)] if extra.order else tensors_of(out)
        found += (("made", one.untyped_storage()) for one in made if lies_there(one))
        found += (("taken", n) for n in extra.after)
    found += (("kept", n) for n in extra.kept)
    return found


def tensors_of(out: Any) -> list[Any]:
    """The tensors that an operator returned."""
    if isinstance(out, torch.Tensor):
        return [out]
    return [one for each in out for one in tensors_of(each)] if type(out) in (tuple, list) else []


def is_wrapped(types: Any) -> bool:
    """Whether a subclass of tensors, like DTensor, has to take its operator apart first."""
    for kind in types:  # noqa: SIM110 -- any() costs more than the loop
        if kind is not FakeTensor and _wraps(kind):
            return True
    return False


@cache
def _wraps(kind: type) -> bool:
    return getattr(
        kind, "__torch_dispatch__", None
    ) is not torch.Tensor.__torch_dispatch__ and not issubclass(kind, torch.nn.Parameter)
