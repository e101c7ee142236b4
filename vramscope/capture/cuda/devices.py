"""The CUDA device that this process uses, and its properties."""

import os

import torch

from vramscope.capture.torch_versions.private_functions import MEMORY_FRACTION, ask
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device
from vramscope.model.marks import Note
from vramscope.units import format_bytes


def ordinal() -> int:
    """The index of this process's CUDA device.

    Before CUDA is initialized it is ``LOCAL_RANK``, which torchrun sets.
    """
    local = os.environ.get("LOCAL_RANK", "")
    if not torch.cuda.is_initialized() and local.isdigit() and int(local) < torch.cuda.device_count():
        return int(local)
    return int(torch.cuda.current_device())


def device_at(index: int) -> Device:
    """Describe the CUDA device at *index* from torch's properties."""
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))  # torch ≥ 2.5
    return Device(
        index=index,
        kind="cuda",
        name=properties.name,
        total_bytes=properties.total_memory,
        uuid=f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid,
    )


def limit_of(index: int) -> Note | None:
    """The bytes that ``set_per_process_memory_fraction`` allows on a device; None without a limit.

    torch makes *index* the calling thread's device, so this belongs on the thread whose allocation failed
    there, or on one of vramscope's own. Older versions of torch do not report the fraction.
    """
    fraction = ask(MEMORY_FRACTION, index)
    if fraction is None or fraction >= 1:
        return None
    # torch stores the bytes, and reports them as a fraction.
    n_bytes = round(fraction * torch.cuda.get_device_properties(index).total_memory)
    text = f"{format_bytes(n_bytes)} allowed to this process (set_per_process_memory_fraction)"
    return Note(NoteCode.LIMIT, text, n_bytes)
