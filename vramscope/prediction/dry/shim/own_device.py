"""A device of our own in a CPU build of torch: its tensors have shapes, and no memory anywhere.

A fake tensor on the device ``cuda`` aborts a process whose torch was built without CUDA. So tensors that a
program puts on ``cuda`` live on torch's slot for foreign devices, PrivateUse1, with an implementation in
Python. Registering it lasts as long as the process.
"""

from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramscope.errors import CaptureError

NAME = "gpu"

# The plain attribute, without a property's call: torch has named it with an underscore since 2.13.
device_of = attrgetter("_fake_device" if "_fake_device" in FakeTensor.__annotations__ else "fake_device")


class _Module:
    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers have no values here."""

    def __getattr__(self, name: str) -> Any:
        """Answer as ``torch.cuda`` does: FSDP asks the module of a tensor's device for streams."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(torch.cuda, name)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


@cache
def own_device() -> torch.device:
    """The one device of that kind; registers it on the first call.

    Raises CaptureError where torch is too old, or where something else in this process has the slot or uses
    the card: from now on this device is torch's only accelerator, and CUDA's backward ends in an assertion.
    """
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register
    except ImportError:
        raise CaptureError(
            f"a dry run needs torch 2.10 or newer, and this is {torch.__version__}: pip install -U torch"
        ) from None
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise CaptureError(f"another device, {taken!r}, has torch's slot for foreign devices in this process")
    if torch.cuda.is_initialized():
        raise CaptureError(
            "this process uses its card, and autograd could not use that after a dry run: "
            "predict in a process of its own, with: vramscope predict SCRIPT"
        )
    # Autograd starts its threads, one for each device, before ours is one: the first backward of a process
    # starts them for good, and with such a thread torch refuses to train in a later fork of the process. A
    # dry run's backward needs none: it runs on the program's own thread.
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), requires_grad=True).clone().backward()
    register(rename=NAME, backend_module=_Module())
    return torch.device(NAME, 0)


def is_own(value: Any) -> bool:
    """Whether it lies on our device."""
    return type(value) is FakeTensor and device_of(value).type == NAME


def lies_there(value: Any) -> bool:
    """Whether it has a storage on our device: a sparse tensor has none, its indices and values have."""
    return is_own(value) and value.layout is torch.strided


_PINNED = "_vramscope_pinned"


def pin(tensor: Any, *_: Any) -> Any:
    """Have *tensor* say that it is pinned, as torch's C++ asserts; without a driver no memory is."""
    if not is_own(tensor):
        setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def is_pinned(tensor: Any) -> bool:
    """Whether it was made pinned, or is a view of what was."""
    return hasattr(tensor.untyped_storage(), _PINNED)
