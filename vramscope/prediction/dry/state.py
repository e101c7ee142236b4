"""The world of the dry run that goes on in this process, for kernels that are registered for good."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramscope.prediction.dry.shim.world import World

_now: "list[World]" = []


def state() -> "World":
    """The one that runs."""
    return _now[-1]


def running() -> "World | None":
    """Return the world of the dry run that goes on; None where none does."""
    return _now[-1] if _now else None


def begin(world: "World") -> None:
    """From now on it is this one."""
    _now.append(world)


def end(world: "World") -> None:
    """Declare that the world is left."""
    _now.remove(world)
