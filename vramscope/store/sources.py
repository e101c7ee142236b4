"""The file ``sources.json`` of a rank: the source lines around the frames of its stacks.

So a viewer on any machine shows the code that ran. Only lines that a frame of the user's own files names are
kept, with their neighbors; no other text of the disk is read.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vramscope.model.stacks import Frame, SourceFile
from vramscope.store.read import side_file
from vramscope.store.write.own_file import OwnFile, replace_file

SOURCES_FILE = "sources.json"
LARGEST_BYTES = 200_000
"""Limit of the file; beyond it the files with the fewest frames are left out."""
CONTEXT = 4
"""Lines that are kept before and after each line that a frame names."""
_LARGEST_SOURCE = 2 << 20
_LONGEST_LINE = 400
_FORMAT, _MAJOR = "vramscope sources", 1
_VALUE = json.JSONEncoder().encode


def collect(frames: Iterable[Frame]) -> dict[str, SourceFile]:
    """Read the lines around *frames*; files that cannot be read are left out.

    Frames are of the user's own files, with absolute paths; the file with the most frames comes first.
    """
    named: dict[str, set[int]] = {}
    for frame in frames:
        if frame.line > 0:
            named.setdefault(frame.file, set()).add(frame.line)
    order = sorted(named, key=lambda path: -len(named[path]))
    return {path: found for path in order if (found := _read(path, named[path])) is not None}


def _read(path: str, lines: set[int]) -> SourceFile | None:
    file = Path(path)
    if not re.search(r"\.py$", path) or not file.is_absolute():
        return None
    try:
        status = file.stat()
        if not file.is_file() or file.resolve().suffix != ".py" or status.st_size > _LARGEST_SOURCE:
            return None
        text = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    near = {n for line in lines for n in range(line - CONTEXT, line + CONTEXT + 1) if 1 <= n <= len(text)}
    kept = {n: text[n - 1][:_LONGEST_LINE] for n in sorted(near)}
    return SourceFile(kept, len(text), status.st_mtime_ns) if kept else None


def write(path: Path, trace: str, found: Mapping[str, SourceFile], own: OwnFile | None = None) -> int:
    """Write the file in one step, within LARGEST_BYTES; return the number of files in it.

    Where *own* is that file, it must be the last version of it.

    Raises OSError, and then the file is unchanged.
    """
    parts: dict[str, str] = {}
    size = 200
    for name, source in found.items():
        text = _VALUE({"n_lines": source.n_lines, "modified_ns": source.modified_ns, "lines": source.lines})
        size += len(text) + len(_VALUE(name)) + 8
        if size > LARGEST_BYTES:
            break
        parts[name] = text
    head = {"format": _FORMAT, "schema": {"major": _MAJOR, "minor": 0}, "trace": trace}
    files = ",\n  ".join(f"{_VALUE(name)}: {text}" for name, text in parts.items())
    data = f'{_VALUE(head)[:-1]}, "files": {{\n  {files}\n}}}}\n'.encode()
    replace_file(path, data) if own is None else own.replace(data)
    return len(parts)


def read(path: Path, trace: str = "") -> dict[str, SourceFile]:
    """Return the kept lines by path; empty where there are none, or they are damaged or another trace's.

    The file must belong to the trace of that id; '' for any.
    """
    try:
        document = side_file.document(path, 4 * LARGEST_BYTES)
        is_known = document["format"] == _FORMAT and document["schema"]["major"] <= _MAJOR
        if not bool(is_known and (not trace or document["trace"] == trace)):
            return {}
        return {str(name): _source(each) for name, each in document["files"].items()}
    except side_file.DAMAGE:
        return {}


def _source(each: Any) -> SourceFile:
    lines = {int(n): str(text)[:_LONGEST_LINE] for n, text in each["lines"].items()}
    return side_file.checked(SourceFile(lines, each["n_lines"], each["modified_ns"]), SourceFile)
