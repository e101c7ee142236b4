"""Comments of the viewers on instants of a recording, in files of this user beside the kept token.

A comment is one file below ``$XDG_STATE_HOME/vramscope/comments``: recordings stay untouched. Viewers who
write at the same time write different files, or replace the whole text of one instant.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from flask import Response, request

from vramscope.store.write.own_file import replace_file

from ..data import Data, View
from ..server import api
from ..server.kept_token import state_directory

LONGEST, MOST_SHOWN = 2000, 500
"""Characters of a comment, and comments of a recording."""
_NAME = re.compile(r"([0-9]{1,19})-([0-9]{1,18})\.txt", re.ASCII)


def comments(data: Data, view: View) -> dict[int, str]:
    """Return the text of each instant that has one; files that cannot be read have none."""
    times, found = view.recording.trace.time_ns, dict[int, str]()
    try:
        for path in sorted(_folder(data, view).glob("*.txt"))[:MOST_SHOWN]:
            name = _NAME.fullmatch(path.name)
            at = _instant(times, int(name[1]), int(name[2])) if name else None
            if at is not None:
                found[at] = path.read_text(encoding="utf-8")[:LONGEST]
    except (OSError, UnicodeDecodeError):
        return found
    return dict(sorted(found.items()))


def register(app: Any, data: Data) -> None:
    """Register the request that keeps, changes or, with an empty text, deletes a comment."""
    app.server.add_url_rule("/api/comment", "comment", lambda: _write(data), methods=["POST"])


def _write(data: Data) -> Response:
    view, text = api.view_of(data), request.get_data(as_text=True).strip()
    times, status = view.recording.trace.time_ns, 403 if data.is_read_only else 400
    why = "A server that other machines reach shows comments and takes none." if data.is_read_only else ""
    if not why and len(text) > LONGEST:
        why = f"A comment has at most {LONGEST:,} characters."
    try:
        if not why:
            _replace(_folder(data, view) / _name(times, api.whole("at", 0, len(times))), text)
    except OSError as error:
        why = f"{error.strerror or error}."
    return Response(f"{why}\n", status, mimetype="text/plain") if why else Response(status=204)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if text:
        replace_file(path, text.encode())
    else:
        path.unlink(missing_ok=True)


def _folder(data: Data, view: View) -> Path:
    """Return the folder of a recording; one rank that is opened as a run of its own has that of its run."""
    home, (run, rank, device, restart) = state_directory(), view.here
    if home is None:
        raise OSError("This user has no home directory")
    whole = data.runs.whole_run(run)
    return home / "comments" / (whole[0] if whole else run) / f"{rank}-{device}-{restart or 0}"


def _name(times: Any, at: int) -> str:
    """Return the file of an instant: events may go from the front of a recording, so no number names it."""
    time_ns = int(times[at - 1 if at else 0]) if len(times) else 0
    first = int(np.searchsorted(times, time_ns))
    is_found = first < len(times) and int(times[first]) == time_ns
    return f"{time_ns}-{at - first}.txt" if is_found and at >= first else f"0-{at}.txt"


def _instant(times: Any, time_ns: int, after: int) -> int | None:
    """Return the instant of a file; None where the recording has no event of that time, or no longer."""
    first = int(np.searchsorted(times, time_ns)) if time_ns else 0
    is_there = not time_ns or (first < len(times) and int(times[first]) == time_ns)
    return first + after if is_there and first + after <= len(times) else None
