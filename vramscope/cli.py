"""The command line: a parser from the commands there are, errors to one line and an exit code."""

import os
import sys
import traceback
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from io import TextIOWrapper

from vramscope import commands, registry
from vramscope._version import __version__
from vramscope.errors import UnknownNameError, UsageError, VramscopeError
from vramscope.units import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 fine, 1 failed, 2 asked wrongly, 3 a check found what it forbids."""
    try:
        return _main(argv)
    except KeyboardInterrupt:
        return 130


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    strict = _on_unknown_letters("replace")
    args = parser.parse_args(argv)
    if "command" not in args:
        parser.print_help(sys.stderr)
        return 2
    if args.command.name == "run":  # whose output is the script's
        _on_unknown_letters(strict)
    if "no_cache" in args:
        os.environ["VRAMSCOPE_CACHE"] = "off"
    try:
        code: int = args.command.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of a pipe went away (| head). Python flushes again at exit: let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (VramscopeError, OSError) as error:
        return _failed(error, args)


def _on_unknown_letters(errors: str | None) -> str | None:
    """What stdout does with letters that it has not (``LANG=C``) and names that are no text; what it did."""
    if not isinstance(sys.stdout, TextIOWrapper):
        return None
    before = sys.stdout.errors
    sys.stdout.reconfigure(errors=errors)
    return before


def _parser() -> ArgumentParser:
    parser = ArgumentParser("vramscope", description="What used the GPU memory, when, and why.")
    parser.add_argument("--version", action="version", version=f"vramscope {__version__}")
    debug = ArgumentParser(add_help=False)
    for options in (parser, debug):  # before and after the command
        options.add_argument("--debug", action="store_true", default=SUPPRESS, help="errors with traceback")
        options.add_argument(
            "--no-cache",
            action="store_true",
            default=SUPPRESS,
            help="read files again, and keep no conversion",
        )
    words = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in registry.parts(commands, commands.Command, refused=_warn).items():
        word = words.add_parser(name, help=command.help, description=command.help, parents=[debug])
        command.arguments(word)
        word.set_defaults(command=command)
    return parser


def _warn(where: str, error: Exception) -> None:
    _complain(f"left out the command {where}: {type(error).__name__}: {error}")


def _failed(error: Exception, args: Namespace) -> int:
    if "debug" in args:
        for line in "".join(traceback.format_exception(error)).splitlines():
            print(printable(line), file=sys.stderr)
    else:
        _complain(_told(error))
    return 2 if isinstance(error, UsageError | UnknownNameError) else 1


def _complain(text: str) -> None:
    """One line on stderr. Names in it may come from files and folders of others."""
    print(f"vramscope: {printable(' '.join(text.split()))}", file=sys.stderr)


def _told(error: Exception) -> str:
    """The system's errors in our order: which file, and what of it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
