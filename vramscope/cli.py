"""The command line: builds the parser from the registered commands and turns errors into one line."""

import os
import re
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from typing import NoReturn

from vramscope import commands, registry
from vramscope._version import __version__
from vramscope.commands import Command
from vramscope.errors import UnknownNameError, UsageError, VramscopeError
from vramscope.units import printable

_GROUPS = ("record", "understand", "foresee", "share", "others")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv
        The arguments after the program's name; None takes those of the process.

    Returns
    -------
    int
        0 success, 1 failure, 2 usage error, 3 a check found what it forbids, 130 interrupted, 141 the reader
        of the output closed the pipe.
    """
    try:
        return _main(argv)
    except KeyboardInterrupt as error:
        if hasattr(error, "is_said"):  # `vramscope run`: the program ends as it would without us
            raise
        return 130


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser(registry.parts(commands, Command, refused=_warn))
    strict = _set_stdout_errors("replace")
    # Parse *argv*; what a command does not know is an error with the usage of that command.
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        vars(args).get("parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if "command" not in args:
        parser.print_help(sys.stderr)
        return 2
    if args.command.name == "run":  # whose output is the script's
        _set_stdout_errors(strict)
    if "no_cache" in args:
        os.environ["VRAMSCOPE_CACHE"] = "off"
    try:
        _check_numbers(args)
        code: int = args.command.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the pipe is gone (| head). Python flushes again at exit, so stdout becomes /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (VramscopeError, OSError) as error:
        if "debug" in args:
            for line in "".join(traceback.format_exception(error)).splitlines():
                print(printable(line), file=sys.stderr)
        else:
            _print_error(_error_text(error))
        return 2 if isinstance(error, UsageError | UnknownNameError) else 1


def _check_numbers(args: Namespace) -> None:
    """Raise UsageError for a number that no option means: NaN, infinity, and what no 64 bits hold."""
    for name, value in vars(args).items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int | float) and not abs(each) < 2**63:
                raise UsageError(f"--{name.replace('_', '-')}: {str(each)[:20]} is no number to go by")


def _set_stdout_errors(errors: str | None) -> str | None:
    """Set how stdout handles characters it cannot encode (``LANG=C``); returns the previous setting."""
    if not isinstance(sys.stdout, TextIOWrapper):
        return None
    before = sys.stdout.errors
    sys.stdout.reconfigure(errors=errors)
    return before


class _Parser(ArgumentParser):
    """A parser whose errors end with the nearest word that it knows."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with 2."""
        super().error(printable(f"{message}{_hint(message, self._option_string_actions)}"))


def _parser(commands: Mapping[str, Command]) -> _Parser:
    """Build the parser of all commands."""
    parser = _Parser(
        "vramscope",
        usage="vramscope [options] COMMAND …",
        description="What used the GPU memory, when, and why.",
        epilog="vramscope COMMAND --help explains a command.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"vramscope {__version__}")
    everywhere = _Parser(add_help=False)
    for options in (parser, everywhere):  # before and after the command
        _add_common(options)
    ordered = sorted(commands.values(), key=lambda command: command.name)
    groups = {
        group: [f"  {command.name:12}{command.help}" for command in ordered if command.group == group]
        for group in _GROUPS
    }
    listed = "\n".join("\n".join([group, *lines]) for group, lines in groups.items() if lines)
    subparsers = parser.add_subparsers(
        prog="vramscope", title="commands", metavar="COMMAND", description=listed, help=SUPPRESS
    )
    for name, command in commands.items():
        subparser = subparsers.add_parser(name, description=command.help, parents=[everywhere])
        command.arguments(subparser)
        subparser.set_defaults(command=command, parser=subparser)
    return parser


def _add_common(options: ArgumentParser) -> None:
    options.add_argument("--debug", action="store_true", default=SUPPRESS, help="errors with traceback")
    options.add_argument(
        "--no-cache", action="store_true", default=SUPPRESS, help="read files again, and keep no conversion"
    )


def _hint(message: str, options: Iterable[str]) -> str:
    """The nearest known word to the one that *message* does not know, as a question; '' if none is near."""
    choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    option = re.search(r"unrecognized arguments: (-[^\s=]*)", message)
    if choice:
        return _nearest(choice[1], re.findall(r"[\w.:-]+", choice[2]))
    return _nearest(option[1], options) if option else ""


def _nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    nearest = get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _warn(where: str, error: Exception) -> None:
    _print_error(f"left out the command {where}: {type(error).__name__}: {error}")


def _print_error(text: str) -> None:
    """Print one line on stderr; it is escaped, since names in it may come from others' files."""
    print(f"vramscope: {printable(' '.join(text.split()))}", file=sys.stderr)


def _error_text(error: Exception) -> str:
    """The text of an error; for the system's errors the file comes first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
