"""Pages of ``torch.cuda._memory_viz`` (``trace_plot``, ``segment_plot``): a snapshot inside HTML.

The page contains the pickle as base64. It is read like every other pickle: nothing in it is executed.
"""

import binascii
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning, contents
from vramscope.formats._pickle import loads
from vramscope.formats._totals_trace import NO_LAYOUT
from vramscope.formats.torch_snapshot import run_of
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Run

_VIEWER = (b"MemoryViz.js", b"add_local_files", b"add_snapshot")
_PROFILE = Note(
    NoteCode.MADE_UP_SEGMENTS,
    "this page was made from a profile: its one segment is made up, so reserved memory means nothing; each "
    "new version of a tensor is an allocation, and the last device may be the host",
)
_DATA = re.compile(rb'"base64":\s*"([A-Za-z0-9+/=\s]*)"')


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether it is HTML that uses torch's viewer."""
    start = beginning(head)
    return b"<html" in start[:1000].lower() and any(word in start for word in _VIEWER)


def read(path: Path) -> Run:
    """Read the snapshot in the page."""
    found = _DATA.search(contents(path))
    if found is None:
        raise FormatError(
            f"{path}: a page of torch's memory viewer without a snapshot in it: open the snapshot.pickle "
            "that it was made from, or save it again"
        )
    try:
        snapshot, n_trailing = loads(binascii.a2b_base64(found[1]))
        # torch appends one to three zeros, so that the base64 needs no padding.
        run = run_of(snapshot, path, n_trailing if n_trailing > 3 else 0)
    except (FormatError, binascii.Error) as error:
        raise FormatError(f"{path}: the snapshot in this page: {error}") from None
    run = replace(run, name=path.stem or path.name)
    if not _is_profile(snapshot):
        return run
    recordings = tuple(replace(known, notes=(*known.notes, NO_LAYOUT)) for known in run.recordings)
    return replace(run, recordings=recordings, notes=(*run.notes, _PROFILE))


def _is_profile(snapshot: Any) -> bool:
    """Return whether ``profile_plot`` made the page: only its events have a category."""
    traces = snapshot.get("device_traces", []) if type(snapshot) is dict else []
    return any("category" in event for trace in traces for event in trace[:1])


FORMAT = Format("memory_viz_html", sniff, read)
