"""Which CUDA device is this process's, and what is it?"""

import os

import torch

from vramscope.model.device import Device


def ordinal() -> int:
    """The device of this process; before it chose one, torchrun's word for it."""
    local = os.environ.get("LOCAL_RANK", "")
    if not torch.cuda.is_initialized() and local.isdigit() and int(local) < torch.cuda.device_count():
        return int(local)
    return int(torch.cuda.current_device())


def device_at(index: int) -> Device:
    """What torch tells of it."""
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))  # torch ≥ 2.5
    return Device(
        index=index,
        kind="cuda",
        name=properties.name,
        total_bytes=properties.total_memory,
        uuid=f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid,
    )
