"""Export of what was allocated at the peak as collapsed stacks, the text that flame graph tools read.

Each line is ``outermost;…;innermost bytes``. With several recordings the first frame names the rank and the
device.
"""

from pathlib import Path

from vramscope.export import Export
from vramscope.export.live_stacks import live_stacks, title
from vramscope.model.recording import Run
from vramscope.model.stacks import Frame


def write(run: Run, path: Path) -> list[Path]:
    """Write one text file with a line for each stack of each recording."""
    lines = []
    for recording in run.recordings:
        first = [title(recording)] if len(run.recordings) > 1 else []
        for stack, n_bytes in live_stacks(recording):
            lines.append(f"{';'.join((*first, *map(_words, stack)))} {n_bytes}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return [path]


def _words(frame: Frame) -> str:
    """Name a frame without the characters that separate frames and lines."""
    where = f" ({frame.file}:{frame.line})" if frame.file else ""
    return " ".join(f"{frame.function}{where}".replace(";", ":").split())


EXPORT = Export("flamegraph", "what was allocated at the peak, as collapsed stacks", write)
