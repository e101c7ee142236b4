"""Recognizes files without data about memory, so that the error says what they are and what to do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats._file import beginning

_RAW = (
    'export the same profile as data: profiler.export_memory_timeline("timeline.raw.json.gz"); or record '
    "a memory snapshot: torch.cuda.memory._record_memory_history() before the work, "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle") after it'
)
_SUMS = re.compile(rb"\s*\[\s*\[\s*\d{12,19}\s*[,\]]")


_UNPACK = "vramscope reads plain files, gzip and zip: unpack it first, and open what was in it"
_RECORD = (
    "record the training with `vramscope run SCRIPT`, or write what torch knows: "
    "torch.cuda.memory._record_memory_history() before the work, "
    'torch.cuda.memory._dump_snapshot("snapshot.pickle") after it'
)
_SAMPLE = "nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 1 > gpu.csv"
_AS_CSV = "export the sheet as CSV, and open that"
_SAVED = (
    "save the snapshot as plain data: torch.cuda.memory._dump_snapshot(path), or pickle.dump; "
    "or take it out of this file: unzip -p FILE '*/data.pkl' > snapshot.pickle"
)


class _UnsupportedKind(NamedTuple):
    name: str
    fits: Callable[[bytes], bool]
    """Returns whether the first bytes of the content are of this kind."""
    advice: str


def _begins(*words: bytes) -> Callable[[bytes], bool]:
    return lambda start: start.startswith(words)


_KINDS = (
    _UnsupportedKind(
        "a memory timeline page, which holds a picture and no data",
        lambda start: b"<html" in start[:200].lower() and b"memory timeline" in start[:1000].lower(),
        _RAW,
    ),
    _UnsupportedKind(
        "a memory timeline of sums by category, without the single allocations",
        lambda start: _SUMS.match(start) is not None,
        _RAW,
    ),
    _UnsupportedKind(
        "what torch.save writes, a zip archive",
        lambda start: start.startswith(b"PK\x03\x04") and b"/data.pkl" in start[:1000],
        _SAVED,
    ),
    _UnsupportedKind(
        "a spreadsheet or an office document",
        lambda start: (
            start.startswith(b"\xd0\xcf\x11\xe0")
            or (start[:2] == b"PK" and b"[Content_Types].xml" in start[:1000])
        ),
        _AS_CSV,
    ),
    _UnsupportedKind("packed by bzip2", _begins(b"BZh"), _UNPACK),
    _UnsupportedKind("packed by xz", _begins(b"\xfd7zXZ\0"), _UNPACK),
    _UnsupportedKind("packed by zstd", _begins(b"\x28\xb5\x2f\xfd"), _UNPACK),
    _UnsupportedKind("packed by gzip twice", _begins(b"\x1f\x8b"), _UNPACK),
    _UnsupportedKind("a tar archive", lambda start: start[257:262] == b"ustar", _UNPACK),
    _UnsupportedKind(
        "a pointer of Git LFS, not the file itself",
        _begins(b"version https://git-lfs.github.com/"),
        "fetch it with: git lfs pull",
    ),
    _UnsupportedKind(
        "a picture",
        _begins(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0"),
        f"copy the text that it shows into a file; or {_RECORD}",
    ),
    _UnsupportedKind("a PDF", _begins(b"%PDF"), f"copy its text into a file, and open that; or {_RECORD}"),
    _UnsupportedKind(
        "a video or a sound",
        lambda start: (
            start[4:8] == b"ftyp" or start.startswith((b"\x1aE\xdf\xa3", b"RIFF", b"OggS", b"ID3", b"fLaC"))
        ),
        _RECORD,
    ),
    _UnsupportedKind(
        "a heap dump of Java", _begins(b"JAVA PROFILE"), f"it has memory of the host; {_RECORD}"
    ),
    _UnsupportedKind("a capture of memray", _begins(b"memray\0"), f"it has memory of the host; {_RECORD}"),
    _UnsupportedKind(
        "a program, a library or a core dump",
        _begins(b"\x7fELF", b"MZ\x90\0", b"\xcf\xfa\xed\xfe", b"MDMP"),
        _RECORD,
    ),
    _UnsupportedKind(
        "a file of Nsight Systems",
        lambda start: b"QuadDViewer" in start[:400] or b"NVIDIA Nsight Systems" in start[:400],
        "export it: nsys export --type sqlite FILE, recorded with --cuda-memory-usage=true",
    ),
    _UnsupportedKind(
        "weights as safetensors",
        lambda start: start[8:9] == b"{" and b"data_offsets" in start[:4000],
        _RECORD,
    ),
    _UnsupportedKind("arrays of NumPy", _begins(b"\x93NUMPY"), _RECORD),
    _UnsupportedKind("an HDF5 file", _begins(b"\x89HDF"), _RECORD),
    _UnsupportedKind(
        "a Parquet file", _begins(b"PAR1"), "write the table as CSV, with its names, and open that"
    ),
    _UnsupportedKind(
        "an Arrow file", _begins(b"ARROW1"), "write the table as CSV, with its names, and open that"
    ),
    _UnsupportedKind(
        "a log of W&B in its own form",
        _begins(b":W&B"),
        "export the run's system metrics as CSV from its page, or by run.history(stream='events').to_csv()",
    ),
)
"""Kinds that the first bytes of the content show."""

_TEXTS = (
    (
        "the default columns of nvidia-smi dmon, which have no amounts of memory (mem is a load)",
        re.compile(rb"^# *gpu .*\bsm\b", re.IGNORECASE | re.MULTILINE),
        f"nvidia-smi dmon -s mu -o DT > gpu.txt, or {_SAMPLE}",
    ),
    (
        "statistics of Nsight Systems, which have times and no amounts of memory that was in use",
        re.compile(rb"Total Time \(ns\)|Time \(%\)"),
        "record with nsys profile --cuda-memory-usage=true, and open what nsys export --type sqlite writes",
    ),
    (
        "a heap snapshot of JavaScript",
        re.compile(rb'\A\s*\{\s*"snapshot"\s*:\s*\{\s*"meta"'),
        f"it has memory of the host; {_RECORD}",
    ),
    (
        "a job that the host's memory ran out for (oom_kill), not the GPU's",
        re.compile(rb"oom[-_ ]?kill|out of memory: kill|oom killed|task \d+: out of memory", re.IGNORECASE),
        "ask for more memory of the host (--mem), or fewer workers that load data; to see the GPU's memory, "
        + _RECORD,
    ),
    (
        "an error of memory without its figures",
        re.compile(
            rb"cuda runtime error \(2\)|out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError",
            re.IGNORECASE,
        ),
        f"keep the whole message, which says what was allocated; or {_RECORD}",
    ),
    (
        "a table of nvidia-smi without its memory",
        re.compile(rb"nvidia-smi|NVIDIA-SMI|utilization\.gpu", re.IGNORECASE),
        _SAMPLE,
    ),
    (
        "source code",
        re.compile(rb"^(?:import |from \w+ import |#include|def |package |func )", re.MULTILINE),
        "run it: vramscope run FILE",
    ),
    (
        "a page of HTML",
        re.compile(rb"\A\s*<(?:!doctype )?html", re.IGNORECASE),
        f"save the data that it shows; or {_RECORD}",
    ),
)
"""Kinds of text by what is in them, of which the first counts, each with what to do."""


def why_not(path: Path) -> str:
    """Return what a file seems to be that no format reads, what it lacks, and what to do, as a clause."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    start = beginning(head)
    if head[:4] == b"PK\x03\x04":
        return f"it seems to be a zip archive, and no text about memory is in it; {_UNPACK}"
    if (
        not start
        or start.count(b"\0") * 20 > len(start)
        or start[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05")
    ):
        what = "a pickle of something else" if start[:1] == b"\x80" else "data of an unknown kind"
        return f"it seems to be {what}; {_RECORD}"
    for name, words, advice in _TEXTS:
        if words.search(start):
            return f"it seems to be {name}; {advice}"
    return (
        "it seems to be a text without any figure of a GPU's memory; print(torch.cuda.memory_summary()) adds "
        f"them to a log; or {_RECORD}"
    )


def _kind(start: bytes) -> _UnsupportedKind | None:
    return next((kind for kind in _KINDS if kind.fits(start)), None)


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001 (the interface of formats)
    """Return whether the file is of a known kind."""
    return _kind(beginning(head)) is not None


def read(path: Path) -> NoReturn:
    """Raise FormatError that says what the file is and what to do instead."""
    with path.open("rb") as file:
        kind = _kind(beginning(file.read(1 << 16)))
    if kind is None:
        raise FormatError(f"{path}: this is of no known kind; {_RAW}")
    raise FormatError(f"{path}: this is {kind.name}; {kind.advice}")


FORMAT = Format("unsupported", sniff, read)
