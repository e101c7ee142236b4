"""The tools of ``vramscope mcp``: each runs one command with ``--json``, and shortens what it prints.

Commands run in processes of their own: what one of them needs is returned when it ends, and one that takes
too long is killed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError, MissingExtraError, UsageError, VramscopeError

MOST_CHARACTERS = 24_000
"""The longest answer: about 8,000 tokens."""
_MOST_ITEMS = 48
"""Items of a list: all cards that a prediction knows, which are the longest list that has to be whole."""
_MOST_TEXT = 2000
_LONGEST_S = 300
_RUNS_SHOWN = 50


def serve(root: Path, *, allow_predict: bool) -> None:
    """Answer the client on stdin and stdout until it closes them.

    Nothing outside of *root* is opened; ``predict``, which executes a script, is offered where allowed.
    Raises MissingExtraError if the package ``mcp`` is not installed.
    """
    server = _server_class()("vramscope", instructions=_instructions(root))
    tools = Tools(root)
    offered = [tools.open, tools.peak, tools.leaks, tools.fit, tools.compare]
    for tool in [*offered, tools.predict] if allow_predict else offered:
        server.tool(annotations=_annotations(is_read_only=tool != tools.predict))(tool)
    server.run("stdio")


def _server_class() -> Any:
    """The server of the official SDK, which has another name in its second version."""
    try:
        try:
            from mcp.server.mcpserver import MCPServer
        except ImportError:
            from mcp.server.fastmcp import FastMCP as MCPServer
    except ImportError:
        raise MissingExtraError("mcp", "mcp") from None
    return MCPServer


def _tool_error() -> Any:
    try:
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        from mcp.server.fastmcp.exceptions import ToolError
    return ToolError


def _annotations(*, is_read_only: bool) -> Any:
    from mcp.types import ToolAnnotations

    return ToolAnnotations(readOnlyHint=is_read_only, destructiveHint=False)


def _instructions(root: Path) -> str:
    return (
        f"Recordings of GPU memory below {root}: `open` lists and describes them, then ask for peak, leaks, "
        "fit or compare by path. A field *_left_out counts what an answer leaves out."
    )


class Tools:
    """The questions that an agent can ask; their docstrings are what it reads about them."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def open(self, path: str = ".") -> str:
        """Describe a run or snapshot, or list the runs of a folder.

        path: a run, a snapshot of torch, or a folder, relative to the served folder.
        """
        return await _in_thread(partial(self._opened, path))

    async def peak(self, path: str) -> str:
        """Report the peak of a run: by line, category, step and phase, with the findings and notes."""
        return await self._answer("report", path)

    async def leaks(self, path: str) -> str:
        """Report memory that grows from step to step: the line, the cause, and what holds it."""
        return await self._answer("leaks", path)

    async def fit(self, path: str, capacity: str = "") -> str:
        """Report what would make a run fit: allocator settings by replay, cards, batches, strategies.

        capacity: the memory of the card, such as 24GiB; empty for that of the run.
        """
        return await self._answer("fit", path, options=[f"--capacity={capacity}"] if capacity else [])

    async def compare(self, before: str, after: str) -> str:
        """Compare two runs: what peaks more or less, by line, category, step and phase."""
        return await self._answer("diff", before, after)

    async def predict(self, script: str, arguments: list[str], card: str = "H100") -> str:
        """Run a training script dry, without a GPU, and predict its peak and whether it fits on the card.

        It executes the script in the folder of the server; its tensors compute nothing.
        """
        return await self._answer("predict", script, options=[f"--card={card}"], after=arguments)

    def _inside(self, path: str) -> str:
        if "\0" in path:
            raise UsageError("a path has no NUL character")
        found = Path(os.path.realpath(self._root / path))  # resolve() raises where links lead to themselves
        if not found.is_relative_to(self._root):
            raise UsageError(f"{path}: outside of {self._root}, which is all that this server opens")
        # A path that begins with a dash would be an option.
        return str(found)

    def _whole_inside(self, path: str) -> str:
        """Return the place of a run of which no part is outside either: its links are read as its parts."""
        waiting, seen = [Path(self._inside(path))], set[Path]()
        while waiting:
            place = waiting.pop()
            seen.add(place)
            for directory, below, names in os.walk(place):
                for link in filter(Path.is_symlink, (Path(directory, name) for name in (*below, *names))):
                    target = Path(os.path.realpath(link))
                    if not target.is_relative_to(self._root):
                        raise UsageError(f"{link}: it leads out of {self._root}, so the run is not opened")
                    if target.is_dir() and target not in seen:
                        waiting.append(target)
        return self._inside(path)

    async def _answer(
        self, command: str, *paths: str, options: Sequence[str] = (), after: Sequence[str] = ()
    ) -> str:
        return await _in_thread(partial(self._asked, command, paths, options, after))

    def _asked(
        self, command: str, paths: Sequence[str], options: Sequence[str] = (), after: Sequence[str] = ()
    ) -> str:
        # Options first: what comes after a script of `predict` belongs to the script.
        asked = [sys.executable, "-m", "vramscope", command, "--json", *options]
        asked += [*map(self._whole_inside, paths), *after]
        if any("\0" in each for each in asked):
            raise UsageError(f"{command}: an argument has no NUL character")
        try:
            done = subprocess.run(  # noqa: S603 -- our own command, with a path below the served folder
                asked,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{command} takes more than {_LONGEST_S} s: run it in a terminal") from None
        if done.returncode not in (0, 3):
            raise FormatError(shortened_text(done.stderr.strip() or f"{command} failed"))
        return bounded(_object_of(done.stdout))

    def _opened(self, path: str) -> str:
        from vramscope.loading import discover

        place = Path(self._inside(path))
        runs = discover(place) if place.is_dir() else [place]
        if runs == [place]:
            return self._asked("info", [str(place)])
        shown = [str(run.relative_to(self._root)) for run in runs[:_RUNS_SHOWN]]
        return bounded({"schema": 1, "runs": shown, "runs_left_out": len(runs) - len(shown)})


async def _in_thread(work: Any) -> str:
    from anyio.to_thread import run_sync

    try:
        return str(await run_sync(work))
    except (VramscopeError, OSError) as error:
        # Any other exception would reach the client without its text.
        raise _tool_error()(shortened_text(str(error))) from None


def _object_of(printed: str) -> Any:
    """The object that a command printed last; a script of ``predict`` may print before it."""
    try:
        return json.loads(printed)
    except ValueError:
        return json.loads(printed[printed.find("\n{") :])


def bounded(answer: Any) -> str:
    """Return *answer* as JSON of at most ``MOST_CHARACTERS``: what is left out is counted beside its list."""
    most = _MOST_ITEMS
    text = json.dumps(_shortened(answer, most))
    while len(text) > MOST_CHARACTERS and most > 1:
        most //= 2
        text = json.dumps(_shortened(answer, most))
    if len(text) > MOST_CHARACTERS:
        return json.dumps({"error": "too long even when shortened: run the command in a terminal"})
    return text


def _shortened(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        found = {name: _shortened(each, most) for name, each in list(value.items())[: 4 * most]}
        cut = {
            f"{name}_left_out": len(each) - most
            for name, each in value.items()
            if isinstance(each, list) and len(each) > most
        }
        if len(value) > 4 * most:
            cut["fields_left_out"] = len(value) - 4 * most
        return found | cut
    if isinstance(value, list):
        return [_shortened(each, most) for each in value[:most]]
    return shortened_text(value) if isinstance(value, str) else value


def shortened_text(text: str) -> str:
    """Return *text*, or its beginning where it is long."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} …"
