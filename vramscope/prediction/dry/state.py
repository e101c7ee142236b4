"""The world of the dry run that goes on in this process, for kernels that are registered for good."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramscope.prediction.dry.shim.fake_cuda import FakeCuda

_now: "list[FakeCuda]" = []


def state() -> "FakeCuda":
    """The one that runs."""
    return _now[-1]


def running() -> "FakeCuda | None":
    """Return the world of the dry run that goes on; None where none does."""
    return _now[-1] if _now else None


def begin(world: "FakeCuda") -> None:
    """From now on it is this one."""
    _now.append(world)


def end(world: "FakeCuda") -> None:
    """Declare that the world is left."""
    _now.remove(world)
