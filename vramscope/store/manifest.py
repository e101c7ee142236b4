"""The manifest: a small JSON file that says what a rank recorded, which process did, and how it ended."""

import errno
import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from vramscope._version import __version__
from vramscope.errors import StoreError
from vramscope.model.device import Device, Process
from vramscope.model.recording import Outcome
from vramscope.store import schema
from vramscope.store.integrity import FileSum
from vramscope.store.liveness import Incarnation
from vramscope.store.read import side_file
from vramscope.store.write.own_file import OwnFile, replace_file

_LONGEST = 16 << 20
# json's own functions may be the program's by now.
_VALUE = json.JSONEncoder(ensure_ascii=False).encode
_SUMMED = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_LARGEST = 2**63
_SHORT = 500
ROOM_BYTES = 8192
"""Blanks at the end of a manifest that may not be the last: how the run ends must fit in on a full disk."""

Value = TypeVar("Value", str, int)
Shape = TypeVar("Shape", Device, Process, Incarnation, FileSum, "Cap")

_CHECKSUM = "crc32"
_END = re.compile("end-(finished|failed)-([0-9]{1,18}|[1-8][0-9]{18})-(E[A-Z0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class Cap:
    """The size cap of a rank's directory, and what was deleted because of it."""

    max_bytes: int = 0
    generation: int = 0
    """The generation of the summary; 0 if nothing was deleted yet."""
    first_part: int = 0
    """The first part that still has all its detail."""
    events: Mapping[int, int] = field(default_factory=dict)
    """The number of deleted events of each device."""
    messages: int = 0
    """The number of numbered record batches that were deleted with them."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of one rank's ``manifest.json``."""

    source: str = "cuda"
    process: Process = field(default_factory=Process)
    devices: tuple[Device, ...] = ()
    incarnation: Incarnation = field(default_factory=Incarnation)
    started_ns: int = 0
    outcome: Outcome = Outcome.RUNNING
    ended_ns: int = 0
    """Unix time of the end; 0 while it runs."""
    error: str = ""
    """The exception that ended it, in one line."""
    stopped: str = ""
    """The reason why writing stopped before the end (such as a full disk); empty if it did not."""
    cap: Cap | None = None
    """The size cap of a trace in several parts."""
    id: str = ""
    """The id of this trace, which each of its files carries; empty for a trace older than checksums."""
    files: Mapping[str, FileSum] = field(default_factory=dict)
    """The sum of every file when this manifest was written, by its path in the rank's directory."""
    is_changed: bool = False
    """Whether the file differs from what its writer wrote."""


def new_id(process: Process, incarnation: Incarnation, started_ns: int) -> str:
    """Return a unique id for the trace that a process starts at a moment."""
    known = (process.host, process.pid, process.rank, incarnation.boot, incarnation.started, started_ns)
    return hashlib.sha256(repr(known).encode(errors="backslashreplace")).hexdigest()[:32]


def is_other_job(known: str, job: str) -> bool:
    """Return whether two ids of jobs are known to be of different jobs."""
    # An id after "@" is of one host: ids of two hosts cannot be compared.
    is_comparable = known.partition("@")[2] == job.partition("@")[2]
    return bool(job and known) and is_comparable and known != job


def write(path: Path, manifest: Manifest, *, durable: bool, own: OwnFile | None = None) -> int:
    """Replace the file in one step, so that a reader always finds a whole one; return its size in bytes.

    Where *own* is that file, it must be the last version of it. Unless it has ended and is *durable*, the
    file ends with blanks: the room for its end. Raises OSError, and then the file is unchanged.
    """
    data = encoded(manifest)
    if manifest.outcome is Outcome.RUNNING or not durable:
        data += b" " * (ROOM_BYTES - 1) + b"\n"
    replace_file(path, data, durable=durable) if own is None else own.replace(data, durable=durable)
    return len(data)


def write_in_place(own: OwnFile, manifest: Manifest, n_bytes: int, directory: int) -> None:
    """Write *manifest* over the last version of the file, of *n_bytes*: a full disk has room for that.

    *directory* is a descriptor of its directory. Raises OSError.
    """
    short = replace(manifest, error=manifest.error[:_SHORT], stopped=manifest.stopped[:_SHORT])
    versions = map(encoded, (manifest, short, replace(short, files={})))
    data = next((data for data in versions if len(data) <= n_bytes), None)
    if data is None:
        raise OSError(errno.ENOSPC, "the end does not fit into the manifest")
    own.overwrite(data.ljust(n_bytes), directory)


def write_as_name(manifest: Manifest, error: OSError, directory: int) -> None:
    """Tell the end by the name of an empty directory: a disk that refuses bytes may take that.

    *error* is why nothing is written; *directory* as for ``write_in_place``. Raises OSError.
    """
    code = errno.errorcode.get(error.errno or 0, "EIO")
    with suppress(FileExistsError):
        os.mkdir(f"end-{manifest.outcome.value}-{manifest.ended_ns}-{code}", dir_fd=directory)


def with_named_end(manifest: Manifest, path: Path) -> Manifest:
    """Return a manifest with the later end that ``write_as_name`` left, if it did: a block's own is older."""
    names: Sequence[str] = ()
    with suppress(OSError):
        names = os.listdir(path.parent)  # noqa: PTH208 -- the names alone
    for outcome, ended_ns, code in (match.groups() for match in map(_END.fullmatch, names) if match):
        if int(ended_ns) > manifest.ended_ns:
            reason = f"{path}: cannot write ({os.strerror(getattr(errno, code, errno.EIO))})"
            manifest = replace(manifest, outcome=Outcome(outcome), ended_ns=int(ended_ns), stopped=reason)
    return manifest


def encoded(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file."""
    document = _to_json(manifest)
    if manifest.id:
        document[_CHECKSUM] = _checksum(document)
    # json's own indentation takes ten times as long, twice in every `with record()`.
    lines = (f"{_VALUE(name)}: {_VALUE(value)}" for name, value in document.items())
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode(errors="backslashreplace")


def read(path: Path) -> Manifest:
    """Read a manifest. Raises StoreError if it is missing, damaged or of a newer major version."""
    data = _bytes_of(path)
    try:
        found = parse(data, path)
    except StoreError:
        # A writer without room writes the end over it: a reader may see half of that, once.
        again = _bytes_of(path)
        if again == data:
            raise
        found = parse(again, path)
    return with_named_end(found, path)


def _bytes_of(path: Path) -> bytes:
    try:
        return side_file.content(path, _LONGEST)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; is this the directory of a run?") from error


def parse(data: bytes, path: Path) -> Manifest:
    """Return the manifest in the bytes of a file. Raises StoreError, which names *path*, as ``read`` does."""
    document = _document(data, path)
    try:
        _check_version(document)
        return _from_json(document)
    except ValueError as error:
        raise StoreError(f"{path}: {error}") from error


def _checksum(document: Mapping[str, Any]) -> int:
    """Return the CRC-32 over all values but itself, independent of their order and of white space."""
    values = {name: value for name, value in document.items() if name != _CHECKSUM}
    return zlib.crc32(_SUMMED(values).encode())


def _to_json(manifest: Manifest) -> dict[str, Any]:
    major, minor = schema.WHOLE if manifest.cap is None else schema.IN_PARTS
    head = {
        "format": "vramscope",
        "schema": {"major": major, "minor": minor},
        "writer": f"vramscope {__version__}",
    }
    apart = {"cap", "files", "is_changed"} | (set() if manifest.id else {"id"})
    values = {f.name: getattr(manifest, f.name) for f in fields(Manifest) if f.name not in apart}
    if manifest.id:
        values["files"] = {name: asdict(known) for name, known in sorted(manifest.files.items())}
    if manifest.cap is not None:
        events = {str(device): n_events for device, n_events in manifest.cap.events.items()}
        values["cap"] = asdict(manifest.cap) | {"events": events}
    process = {f.name: getattr(manifest.process, f.name) for f in fields(Process)}
    return (
        head
        | values
        | {
            "process": process
            | {"allocator": dict(manifest.process.allocator), "mesh": dict(manifest.process.mesh)},
            "incarnation": asdict(manifest.incarnation),
            "devices": [asdict(device) for device in manifest.devices],
            "outcome": manifest.outcome.value,
        }
    )


def _document(data: bytes, path: Path) -> Mapping[str, Any]:
    if len(data) > _LONGEST:
        raise StoreError(f"{path}: larger than {_LONGEST >> 20} MiB; this is no manifest of vramscope")
    try:
        return side_file.parsed(data)
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error}); the manifest is damaged") from error


def _check_version(document: Mapping[str, Any]) -> None:
    if "schema" not in document:
        raise ValueError("names no schema version; this is no manifest of vramscope")
    version = _mapping(document, "schema")
    major, minor = _get(version, "major", 0), _get(version, "minor", 0)
    if major > schema.IN_PARTS[0]:
        raise ValueError(
            f"written by a newer vramscope (schema {major}.{minor}; this one reads up to "
            f"{schema.IN_PARTS[0]}.x): pip install -U vramscope"
        )
    if major < 1:
        raise ValueError(f"schema {major}.{minor} never existed; the manifest is damaged")


def _from_json(document: Mapping[str, Any]) -> Manifest:
    devices = document.get("devices", [])
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        raise ValueError("'devices' is not a list of objects; the manifest is damaged")
    process, files = _mapping(document, "process"), _mapping(document, "files")
    allocator = {str(key): str(value) for key, value in _mapping(process, "allocator").items()}
    mesh = {str(key): _get({"": value}, "", 0) for key, value in _mapping(process, "mesh").items()}
    return Manifest(
        source=_get(document, "source", ""),
        process=_shape(Process, process, allocator=allocator, mesh=mesh),
        devices=tuple(_device(device) for device in devices),
        incarnation=_shape(Incarnation, _mapping(document, "incarnation")),
        started_ns=_get(document, "started_ns", 0),
        outcome=_outcome(_get(document, "outcome", "running"), _get(document, "ended_ns", 0)),
        ended_ns=_get(document, "ended_ns", 0),
        error=_get(document, "error", ""),
        stopped=_get(document, "stopped", ""),
        cap=_cap(_mapping(document, "cap")) if "cap" in document else None,
        id=_get(document, "id", ""),
        files={name: _shape(FileSum, _mapping(files, name)) for name in files},
        is_changed=_is_changed(document),
    )


def _is_changed(document: Mapping[str, Any]) -> bool:
    # Versions from 1.3 and 2.2 on carry a checksum; the check is made even if its key was damaged.
    version = _mapping(document, "schema")
    known = schema.FIRST_WITH_CHECKSUMS.get(_get(version, "major", 0), 0)
    is_expected = "id" in document or _CHECKSUM in document or _get(version, "minor", 0) >= known
    return is_expected and document.get(_CHECKSUM) != _checksum(document)


def _cap(document: Mapping[str, Any]) -> Cap:
    counts = _mapping(document, "events")
    if not all(re.fullmatch("[0-9]{1,5}", device) for device in counts):
        raise ValueError("'events' is not by device; the manifest is damaged")
    found = _shape(Cap, document, events={int(device): _get(counts, device, 0) for device in counts})
    # The numbers become part of the names of directories.
    if min(found.generation, found.first_part, *found.events.values(), 0) < 0:
        raise ValueError("'cap' holds what cannot be; the manifest is damaged")
    return found


def _device(document: Mapping[str, Any]) -> Device:
    device = _shape(Device, document)
    # The index becomes part of file names.
    if not 0 <= device.index < 100_000:
        raise ValueError(f"device {device.index} cannot be; the manifest is damaged")
    return device


def _outcome(text: str, ended_ns: int) -> Outcome:
    """Return the outcome; an unknown word of a newer writer counts as ended if there is an end time."""
    try:
        return Outcome(text)
    except ValueError:
        return Outcome.FINISHED if ended_ns else Outcome.RUNNING


def _shape(shape: type[Shape], document: Mapping[str, Any], **known: Any) -> Shape:
    default = shape()
    found = {
        f.name: _get(document, f.name, getattr(default, f.name)) for f in fields(shape) if f.name not in known
    }
    return shape(**found, **known)


def _get(document: Mapping[str, Any], name: str, default: Value) -> Value:
    value = document.get(name, default)
    if type(value) is not type(default):
        raise ValueError(
            f"{name!r} is {value!r:.80}, not a {type(default).__name__}; the manifest is damaged"
        )
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"{name!r} is too large; the manifest is damaged")
    return value


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is not an object; the manifest is damaged")
    return value
