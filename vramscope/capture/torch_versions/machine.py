"""What this machine gives a recording: torch, its devices, the driver, and what is allowed."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import pynvml

from vramscope.errors import CaptureError

_MARKS = ("/.dockerenv", "/run/.containerenv")
_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container", "APPTAINER_CONTAINER")


@dataclass(frozen=True, slots=True)
class Torch:
    """PyTorch as this Python has it."""

    version: str
    built_for: str
    """``CUDA 13.0``, ``ROCm 6.4``; empty for a build that knows no GPU."""
    devices: int
    """The number of CUDA devices that this process may use."""
    backend: str
    """The allocator's backend: ``native``, ``cudaMallocAsync`` or ``pluggable``."""
    configuration: str
    """The allocator's configuration in the environment; empty where none is set."""
    is_checked: bool
    """Whether the tests record with this version on its own allocator."""
    obstacle: str
    """Why its history of allocations cannot be read; empty where it can."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as the driver sees it, perhaps split into slices (MIG)."""

    name: str
    total_bytes: int
    used_bytes: int
    is_split: bool


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver, asked through NVML."""

    version: str = ""
    gpus: Sequence[Gpu] = ()
    error: str = ""
    """Why NVML does not answer; empty where it does."""


def installed_torch() -> Torch:
    """Describe the installed PyTorch; its history is tried, which takes a CUDA context for a moment.

    Raises CaptureError where there is none, or it cannot be imported.
    """
    try:
        import torch

        from vramscope.capture.torch_versions import allocator_conf
        from vramscope.capture.torch_versions.private_functions import CHECKED
    except (ImportError, OSError) as error:
        raise CaptureError(f"PyTorch cannot be imported: {error}") from None
    hip, has_device = getattr(torch.version, "hip", None), torch.cuda.is_available()
    built_for = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    return Torch(
        version=str(torch.__version__),
        built_for=built_for,
        devices=torch.cuda.device_count() if has_device else 0,
        backend=torch.cuda.get_allocator_backend() if has_device else "",
        configuration=allocator_conf(torch.__version__),
        is_checked=torch.__version__.partition("+")[0] in CHECKED,
        obstacle=_obstacle() if has_device else "",
    )


def _obstacle() -> str:
    from vramscope.capture.cuda.history import obstacle

    try:
        return obstacle()
    except RuntimeError as error:  # CUDA does not start: a device that another process has for itself alone
        return str(error).partition("\n")[0]


def driver() -> Driver:
    """Ask the driver for its version and its devices."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(error=str(error))
    try:
        count = pynvml.nvmlDeviceGetCount()
        gpus = [_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        return Driver(_text(pynvml.nvmlSystemGetDriverVersion()), gpus)
    except pynvml.NVMLError as error:
        return Driver(error=str(error))
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        is_split = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        is_split = False  # most devices cannot be split
    return Gpu(_text(pynvml.nvmlDeviceGetName(handle)), int(memory.total), int(memory.used), is_split)


def _text(answer: str | bytes) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def surroundings() -> Sequence[str]:
    """What stands between this process and the device: ``container``, ``WSL``."""
    is_inside = any(map(os.path.exists, _MARKS)) or any(map(os.environ.get, _VARIABLES))
    return ["container"] * is_inside + ["WSL"] * ("microsoft" in platform.release().lower())
