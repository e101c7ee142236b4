"""The subcommands of the command line: one per module, ``COMMAND = Command(...)``.

The words of ours, in the help and on the line, are the rows of ``commands.tsv`` beside their module.
"""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from vramscope.package_data import rows

_MOST_S = 86_400
_NONE: Mapping[str, Iterable[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Modules import what they need inside ``run``, so that ``--help`` is instant."""

    name: str
    help: str
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """Returns the exit code: 0 success, 1 failure, 2 usage error, 3 a limit of ``check`` is exceeded."""
    group: str = "others"
    """The heading in ``vramscope --help``: ``record``, ``understand``, ``foresee`` or ``share``."""


def described(
    name: str,
    run: Callable[[Namespace], int],
    module: str = __file__,
    choices: Mapping[str, Iterable[str]] = _NONE,
) -> Command:
    """Return the command whose rows begin with *name*: first its group and help, then a row an argument.

    *choices* has the values of arguments that no table can know.
    """
    (_, group, _, text), *arguments = rows(module, "commands.tsv", name)
    return Command(name, text, partial(_add, arguments, choices), run, group)


def _add(
    arguments: Sequence[Sequence[str]], choices: Mapping[str, Iterable[str]], parser: ArgumentParser
) -> None:
    has_form = any(kind == "form" for _, kind, *_ in arguments)
    form = parser.add_mutually_exclusive_group() if has_form else parser
    for name, kind, metavar, text, *more in arguments:
        if name == "usage":
            parser.usage = text
            continue
        options: dict[str, Any] = dict(pair.split("=") for pair in " ".join(more).split())
        options |= _KINDS.get(kind, {"choices": tuple(kind.split("|"))})
        if metavar:
            options["metavar"] = metavar
        if name in choices:
            options["choices"] = choices[name]
        if options.get("action") == "append":
            options["default"] = []
        (form if kind == "form" else parser).add_argument(name, help=text or SUPPRESS, **options)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MOST_S:  # not a number is neither
        raise ArgumentTypeError(f"a number of seconds from 0 to {_MOST_S:,}, not {text[:40]!r}")
    return found


_KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {},
    "int": {"type": int},
    "float": {"type": float},
    "seconds": {"type": _seconds},
    "flag": {"action": "store_true"},
    "form": {"action": "store_true"},
    "given": {"action": "store_const", "const": True},
}
"""What the kind of an argument means; another kind lists the words that it may be.

``form`` is a flag that excludes other ones of its kind, ``given`` a flag that is None where it is not given.
"""
