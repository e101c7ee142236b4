"""The command line: builds the parser from the registered commands and turns errors into one line."""

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
    parser = _parser()
    strict = _set_stdout_errors("replace")
    args = parser.parse_args(argv)
    if "command" not in args:
        parser.print_help(sys.stderr)
        return 2
    if args.command.name == "run":  # whose output is the script's
        _set_stdout_errors(strict)
    if "no_cache" in args:
        os.environ["VRAMSCOPE_CACHE"] = "off"
    try:
        _check_numbers(args)
        if "editor" in args:
            os.environ["VRAMSCOPE_EDITOR"] = args.editor
        code: int = args.command.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the pipe is gone (| head). Python flushes again at exit, so stdout becomes /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (VramscopeError, OSError) as error:
        return _failed(error, args)


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
        options.add_argument(
            "--editor",
            metavar="NAME",
            default=SUPPRESS,
            help="what file:line links open: vscode, pycharm, file, none, or a URL with {file} and {line}",
        )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in registry.parts(commands, commands.Command, refused=_warn).items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help, parents=[debug])
        command.arguments(subparser)
        subparser.set_defaults(command=command)
    return parser


def _warn(where: str, error: Exception) -> None:
    _print_error(f"left out the command {where}: {type(error).__name__}: {error}")


def _failed(error: Exception, args: Namespace) -> int:
    if "debug" in args:
        for line in "".join(traceback.format_exception(error)).splitlines():
            print(printable(line), file=sys.stderr)
    else:
        _print_error(_error_text(error))
    return 2 if isinstance(error, UsageError | UnknownNameError) else 1


def _print_error(text: str) -> None:
    """Print one line on stderr; it is escaped, since names in it may come from others' files."""
    print(f"vramscope: {printable(' '.join(text.split()))}", file=sys.stderr)


def _error_text(error: Exception) -> str:
    """The text of an error; for the system's errors the file comes first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
