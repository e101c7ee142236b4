"""What can be recorded on this machine, and why not: versions, driver, permissions, allocator."""

import platform
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vramscope._version import __version__
from vramscope.commands import described
from vramscope.errors import CaptureError

if TYPE_CHECKING:
    from vramscope.capture.torch_versions.machine import Driver, Torch
    from vramscope.commands._document import Block

_PACKAGES = ("numpy", "pyarrow", "nvidia-ml-py", "rich")
_EXTRAS = {"dashboard": "dash", "metrics": "prometheus-client", "remote": "fsspec"}
_EXTRAS |= {name: name for name in ("torch", "pandas", "perfetto", "mcp", "ray")}
"""One package of each extra: where it is installed, the extra is taken for installed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether something can be done here."""

    what: str
    state: str
    """``yes``, ``partly`` or ``no``."""
    why: str
    do: str = ""
    """What helps; empty where nothing has to be done."""


def run(args: Namespace) -> int:
    """Print what can be done on this machine; return the exit code."""
    from vramscope.commands._document import print_answer

    report = _report()
    return print_answer(args, lambda: report, _page(report))


def _report() -> dict[str, Any]:
    from vramscope.capture.torch_versions import machine

    driver = machine.driver()  # first: trying torch takes memory of the device
    torch, problem = _torch()
    return {
        "schema": 1,
        "versions": {
            "vramscope": __version__,
            "python": platform.python_version(),
            "torch": torch.version if torch else None,
            "driver": driver.version or None,
            **{name: _version_of(name) for name in _PACKAGES},
        },
        "system": [platform.platform(), *machine.surroundings()],
        "torch": asdict(torch) if torch else None,
        "driver": asdict(driver),
        "extras": [extra for extra, package in _EXTRAS.items() if _version_of(package)],
        "can": [asdict(answer) for answer in _answers(torch, problem, driver)],
    }


def _torch() -> "tuple[Torch | None, str]":
    """The installed PyTorch, or None with the reason."""
    from vramscope.capture.torch_versions.machine import installed_torch

    if _version_of("torch") is None:
        return None, "PyTorch is not installed in this Python"
    try:
        return installed_torch(), ""
    except CaptureError as error:
        return None, str(error)


def _version_of(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _answers(torch: "Torch | None", problem: str, driver: "Driver") -> Iterator[Answer]:
    if torch:
        yield _on_cuda(torch, driver)
        why = "the tensors of a training on the CPU go through a model of CUDA's allocator"
        yield Answer("record without a GPU", "yes", why)
        yield _predicting(torch)
    else:
        install = "pip install torch, into the Python of your training"
        for what in ("record on a GPU", "record without a GPU", "predict what a script needs"):
            yield Answer(what, "no", problem, install)
    yield _of_the_driver(driver)
    yield Answer("read recordings and snapshots", "yes", "that needs neither torch nor a GPU")
    yield _writing()
    if _version_of("dash"):
        yield Answer("show pages (serve)", "yes", "the dashboard is installed")
    else:
        yield Answer("show pages (serve)", "no", "dash is missing", 'pip install "vramscope[dashboard]"')


def _predicting(torch: "Torch") -> Answer:
    from vramscope.capture.torch_versions import version

    if version(torch.version) < (2, 10):
        return Answer("predict what a script needs", "no", "that needs torch 2.10", "pip install -U torch")
    return Answer("predict what a script needs", "yes", "its steps run dry, without a GPU")


def _on_cuda(torch: "Torch", driver: "Driver") -> Answer:
    what, levels = "record on a GPU", "levels and peaks only"
    if not torch.built_for:
        wanted = "install a build of torch for CUDA" if driver.gpus else ""
        return Answer(what, "no", f"torch {torch.version} is built without CUDA", wanted)
    if not torch.devices:
        do = "check nvidia-smi, CUDA_VISIBLE_DEVICES, and --gpus of the container"
        return Answer(what, "no", f"torch {torch.version} ({torch.built_for}) finds no device", do)
    if torch.backend != "native":
        do = "take the backend out of PYTORCH_CUDA_ALLOC_CONF"
        return Answer(what, "partly", f"{torch.backend} keeps no history: {levels}", do)
    if torch.obstacle:
        return Answer(what, "partly", f"{torch.obstacle}: {levels}", "install another version of torch")
    return Answer(what, "yes", f"every allocation with its stack, {_tested(torch)}")


def _tested(torch: "Torch") -> str:
    if torch.built_for.startswith("ROCm"):
        return f"but {torch.built_for} was never tried"
    if torch.is_checked:
        return f"as tested with torch {torch.version.partition('+')[0]}"
    return f"but torch {torch.version} is not among the tested versions"


def _of_the_driver(driver: "Driver") -> Answer:
    from vramscope.capture.torch_versions.machine import surroundings

    what = "count other processes (NVML)"
    if driver.error:
        return Answer(what, "no", f"NVML does not answer: {driver.error}", "without an NVIDIA GPU: nothing")
    if "container" in surroundings():
        why = "a container may hide the ids of processes: then its own share is unknown"
        return Answer(what, "partly", why, "start the container with --pid=host")
    if "WSL" in surroundings():
        return Answer(what, "partly", "WSL lists processes without their memory: the shares are unknown")
    if any(gpu.is_split for gpu in driver.gpus):
        return Answer(what, "partly", "a slice (MIG) reports its memory, and not how busy it is")
    return Answer(what, "yes", f"driver {driver.version}")


def _writing() -> Answer:
    import os
    from pathlib import Path

    home = Path("traces") if Path("traces").exists() else Path()
    if os.access(home, os.W_OK | os.X_OK):
        return Answer("write recordings here", "yes", str(Path("traces").absolute()))
    why = f"{home.absolute()} is not yours to write"
    return Answer("write recordings here", "no", why, "record to another place: --output DIR")


def _page(report: Mapping[str, Any]) -> "Iterator[Block]":
    from vramscope.commands._document import Heading, Text
    from vramscope.units import format_bytes

    versions = {name: version for name, version in report["versions"].items() if version}
    yield Heading(f"vramscope {__version__}", level=1)
    yield Text(", ".join(f"{name} {version}" for name, version in versions.items() if name != "vramscope"))
    yield Text(", ".join(report["system"]))
    torch = report["torch"]
    if torch and torch["backend"]:
        yield Text(f"allocator: {torch['backend']}, {torch['configuration'] or 'no settings'}")
    for index, gpu in enumerate(report["driver"]["gpus"]):
        used, total = format_bytes(gpu["used_bytes"]), format_bytes(gpu["total_bytes"])
        yield Text(f"GPU {index}: {gpu['name']}, {used} of {total} used{', MIG' * gpu['is_split']}")
    yield Text(f"extras: {', '.join(report['extras']) or 'none'}")
    yield Heading("What can be done here")
    for answer in report["can"]:
        yield Text(f"{answer['state']:8}{answer['what']}: {answer['why']}", answer["state"])
        if answer["do"]:
            yield Text(f"{'':8}{answer['do']}", "quiet")


COMMAND = described("doctor", run)
