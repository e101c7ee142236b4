"""The CUDA device that this process uses, and its properties."""

import os

import torch

from vramscope.model.device import Device


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
