"""Links from the places in a page of the terminal (``train.py:13``) to an editor, as OSC 8 has them."""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter
from typing import Any
from urllib.parse import quote

import numpy as np

from vramscope.analysis.lines import short_file
from vramscope.errors import UsageError
from vramscope.model.recording import Recording

_TEMPLATES = {
    "vscode": "vscode://file{file}:{line}",
    "pycharm": "pycharm://open?file={file}&line={line}",
    "file": "file://{host}{file}",
    "none": "",
}
_PLACE = re.compile(r"([^\s:()\[\]]+):(\d+)")


def files_of(recordings: Iterable[Recording]) -> Iterator[str]:
    """Yield the files that stacks and holders name."""
    for recording in recordings:
        stacks, holders = recording.stacks, recording.holders
        yield from (stacks.strings[row] for row in np.unique(stacks.file).tolist())
        yield from (holders.names[row] for row in np.unique(holders.file).tolist())


def _template(editor: str) -> str:
    """Return the template of a URL by the name of an editor, or that of the user; raises UsageError."""
    if editor in _TEMPLATES:
        return _TEMPLATES[editor]
    try:
        fields = {name for _, name, _, _ in Formatter().parse(editor) if name is not None}
    except ValueError:
        fields = set()
    if "file" not in fields or not fields <= {"file", "line", "host"}:
        names = ", ".join(_TEMPLATES)
        raise UsageError(f"--editor {editor!r}: {names}, or a URL with {{file}} and {{line}}")
    return editor


class Links:
    """The links of one page."""

    def __init__(self, files: Iterable[str], editor: str | None = None) -> None:
        """Know the files that a page may name.

        Paths are as recorded, read only where links are wanted. *editor* is a name or a template of one's
        own; None takes that of ``--editor``, else of the terminal. Raises UsageError if it is neither.
        """
        self._template = _template(editor or os.environ.get("VRAMSCOPE_EDITOR") or _of_terminal())
        self._known: dict[str, set[str]] = defaultdict(set)
        for file in files if self._template else ():
            for written in {file, short_file(file)}:
                self._known[written].add(file)

    def add_to(self, text: Any) -> None:
        """Add links to a text of rich: to each place whose file is known, only one, and on this machine."""
        from rich.style import Style

        for found in _PLACE.finditer(text.plain) if self._known else ():
            files = self._known.get(found[1], set())
            if len(files) == 1 and Path(file := next(iter(files))).is_file():
                text.stylize(Style(link=self._url(file, int(found[2]))), *found.span())

    def _url(self, file: str, line: int) -> str:
        path = quote(str(Path(file).absolute()))
        return self._template.format(file=path, line=line, host=quote(socket.gethostname()))


def _of_terminal() -> str:
    """Return the editor whose own terminal this is; else the terminal opens the file by its type."""
    if os.environ.get("TERM_PROGRAM") == "vscode":
        return "vscode"
    return "pycharm" if os.environ.get("TERMINAL_EMULATOR") == "JetBrains-JediTerm" else "file"
