"""Files about GPU memory that cannot be opened yet: recognised, so that the refusal helps."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning

_SNAPSHOT = (
    "record a memory snapshot instead: torch.cuda.memory._record_memory_history() before the work, "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle") after it'
)
_LIVE = 'record with vramscope.record("traces/run"), which samples the same numbers beside the events'


class _Kind(NamedTuple):
    """One kind of file."""

    name: str
    fits: Callable[[bytes], bool]
    """By the first bytes of the content."""
    advice: str


def _is_timeline(start: bytes) -> bool:
    """Rows ``[time or -1, action, bytes, category]``."""
    words = b"".join(start[:200].split())
    return words.startswith((b"[[-1,1,", b"[[-1,0,")) or (words.startswith(b"[[") and words.count(b"],[") > 3)


def _is_smi(start: bytes) -> bool:
    line = start.split(b"\n", 1)[0].lower()
    return line.count(b",") >= 2 and (
        any(word in line for word in (b"memory.used", b"memory.total", b"utilization.gpu"))
        or (b" mib" in line and b"%" in line)
    )


_KINDS = (
    _Kind(
        "a trace of the PyTorch profiler (Kineto)",
        lambda start: (
            b'"traceEvents"' in start or b'"schemaVersion"' in start or b'"deviceProperties"' in start
        ),
        _SNAPSHOT,
    ),
    _Kind(
        "a memory timeline page, which holds a picture and no data",
        lambda start: b"<html" in start[:200].lower(),
        _SNAPSHOT,
    ),
    _Kind("a memory timeline of the PyTorch profiler (export_memory_timeline)", _is_timeline, _SNAPSHOT),
    _Kind("a log of nvidia-smi", _is_smi, _LIVE),
    _Kind(
        "the text of torch.cuda.memory_summary()",
        lambda start: b"CUDA memory summary" in start,
        _SNAPSHOT,
    ),
    _Kind(
        "the text of an out-of-memory error",
        lambda start: b"CUDA out of memory" in start or b"OutOfMemoryError" in start,
        _SNAPSHOT,
    ),
)


def _kind(start: bytes) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.fits(start)), None)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Whether the file is known by its look."""
    return _kind(beginning(head)) is not None


def read(path: Path) -> NoReturn:
    """Say what the file is and what to do instead."""
    with path.open("rb") as file:
        kind = _kind(beginning(file.read(1 << 16)))
    name = kind.name if kind else "of no known kind"
    raise FormatError(f"{path}: this is {name}: not supported yet; {kind.advice if kind else _SNAPSHOT}")


FORMAT = Format("unsupported", sniff, read)
