"""Finds the parts of a package: one constant a file, plus the entry points of other distributions."""

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

from vramscope.errors import UnknownNameError

Part = TypeVar("Part")


def parts(
    package: ModuleType, kind: type[Part], refused: Callable[[str, Exception], None] | None = None
) -> dict[str, Part]:
    """Collect the part of every module of *package* that declares ``KIND = Kind(...)``.

    A file adds a part by defining one constant named after the kind in capitals; modules with a leading
    underscore are helpers. Entry points in the group ``<package>`` (``vramscope.commands``) add parts of
    other distributions in the same way.

    Without *refused*, which receives the name and the error of each broken entry point, its error is raised;
    TypeError if a constant has a wrong type, or two parts have the same name.
    """
    found = own_parts(package, kind)
    for point in entry_points_of(package.__name__):
        _add_foreign(found, point, kind, refused)
    return found


# Once a process: it reads the metadata of all installed distributions, 40 ms, and a page asks every second.
@cache
def entry_points_of(group: str) -> tuple["EntryPoint", ...]:
    """Return the entry points in *group* of the distributions that are installed when it is asked first."""
    # Late: this import takes 20 ms, which looking up one of vramscope's own formats does not need.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def own_parts(package: ModuleType, kind: type[Part]) -> dict[str, Part]:
    """Collect the parts of *package* itself, without those of other distributions."""
    constant = kind.__name__.upper()
    found: dict[str, Part] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            part = getattr(import_module(f"{package.__name__}.{module.name}"), constant, None)
            if part is not None:
                _add(found, part, kind, module.name)
    return found


def part_in_own_file(package: ModuleType, kind: type[Part], name: str) -> Part | None:
    """The part called *name* if the file of that name declares it, else None; loads no other file."""
    if name.startswith("_") or all(module.name != name for module in pkgutil.iter_modules(package.__path__)):
        return None
    found = getattr(import_module(f"{package.__name__}.{name}"), kind.__name__.upper(), None)
    return found if isinstance(found, kind) and getattr(found, "name", None) == name else None


def part(package: ModuleType, kind: type[Part], name: str) -> Part:
    """Return the part called *name*; raises UnknownNameError that lists the others.

    A broken part of another distribution raises its error only if it is the one requested.
    """
    own = own_parts(package, kind)
    if name in own:
        return own[name]
    broken: dict[str, Exception] = {}
    offered = parts(package, kind, refused=broken.__setitem__)
    if name in broken:
        raise broken[name]
    if name not in offered:
        raise UnknownNameError(
            f"no {kind.__name__.lower()} called {name!r}; there is: {', '.join(sorted(offered))}"
        )
    return offered[name]


def _add_foreign(
    found: dict[str, Part],
    point: "EntryPoint",
    kind: type[Part],
    refused: Callable[[str, Exception], None] | None,
) -> None:
    try:
        _add(found, point.load(), kind, point.value)
    except Exception as error:  # loading runs another distribution's module, which can raise anything
        if refused is None:
            raise
        refused(point.name, error)


def _add(found: dict[str, Part], part: Part, kind: type[Part], where: str) -> None:
    name = getattr(part, "name", None)
    if not isinstance(part, kind) or not isinstance(name, str):
        raise TypeError(f"{where}: expected a {kind.__name__} with a name, got {part!r}")
    if name in found:
        raise TypeError(f"{where}: the {kind.__name__.lower()} {name!r} exists already")
    found[name] = part
