"""Answers questions about recordings to agents, over the Model Context Protocol on stdin and stdout."""

from argparse import Namespace
from pathlib import Path

from vramscope.commands import described
from vramscope.errors import UsageError


def run(args: Namespace) -> int:
    """Serve until the client closes stdin; return the exit code."""
    from vramscope.commands._mcp_tools import serve

    root = Path(args.root)
    if not root.is_dir():
        raise UsageError(f"{args.root}: this folder does not exist")
    serve(root.resolve(), allow_predict=args.allow_predict)
    return 0


COMMAND = described("mcp", run)
