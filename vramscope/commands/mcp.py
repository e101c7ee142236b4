"""Answers questions about recordings to agents, over the Model Context Protocol on stdin and stdout."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from vramscope.commands import Command
from vramscope.errors import UsageError


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``vramscope mcp`` to *parser*."""
    parser.add_argument(
        "root", nargs="?", default=".", metavar="DIR", help="nothing outside of it is opened (this folder)"
    )
    parser.add_argument(
        "--allow-predict", action="store_true", help="offer predict, which runs a script of DIR dry"
    )


def run(args: Namespace) -> int:
    """Serve until the client closes stdin; return the exit code."""
    from vramscope.commands._mcp_tools import serve

    root = Path(args.root).resolve()
    if not root.is_dir():
        raise UsageError(f"{args.root}: this folder does not exist")
    serve(root, allow_predict=args.allow_predict)
    return 0


COMMAND = Command(
    "mcp", "answer agents: open, peak, leaks, fit, compare as tools of MCP", arguments, run, "share"
)
