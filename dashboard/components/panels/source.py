"""The line of code that a frame names, where this machine has it."""

import re
from pathlib import Path

from vramscope.analysis.source_text import Excerpt, excerpt
from vramscope.model.stacks import Frame

MAX_SOURCE_BYTES = 2 << 20


def source(frame: Frame, recorded_ns: int = 0) -> Excerpt | None:
    """The lines around the frame's; None where the file is not here. *recorded_ns* as in ``excerpt``.

    A recording may name any file, so only Python sources are opened: their text is what a viewer of code
    expects to see, and nothing else on the disk is.
    """
    path = Path(frame.file)
    if not re.search(r"\.py$", frame.file) or not path.is_absolute() or frame.line < 1:
        return None
    try:
        if not path.is_file() or path.resolve().suffix != ".py" or path.stat().st_size > MAX_SOURCE_BYTES:
            return None
        text = path.read_text(encoding="utf-8", errors="replace")
        return excerpt(text, frame, modified_ns=path.stat().st_mtime_ns, recorded_ns=recorded_ns)
    except (OSError, ValueError):
        return None
