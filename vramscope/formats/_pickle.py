"""Reads the data of a pickle without executing anything.

Pickles are programs. Every opcode is checked first, from the first byte to STOP, against a grammar of plain
data: None, bool, 64-bit int, float, str, list, dict with such keys, and tuples of a few integers. Whatever
imports, calls or rebuilds objects is refused by name. Only then does CPython's unpickler build the data, with
every import forbidden again.

``Unpickler`` with a ``find_class`` that raises would not be enough by itself: one LONG_BINPUT resizes its
memo to gigabytes, a BYTEARRAY8 prefix allocates before it reads, hashing nested tuples takes exponential
time or overflows the C stack, and a FRAME that ends inside of an opcode shifts what is read next.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

from vramscope.errors import FormatError
from vramscope.malloc import collector_off

# The opcodes of a torch snapshot, matched thousands at a time: 20 ns each, where a loop takes 150 ns.
# Ordered by their frequency in torch's files; each alternative is whole opcodes. "." is any byte.
_INT = rb"(?:K.|M..|J....)"
_DECIMAL = rb"I-?\d{1,20}\n"
_LONG1 = rb"|".join(rb"\x8a" + re.escape(bytes([n])) + b"." * n for n in (6, 4, 5, 0, 1, 2, 3, 7, 8))
_SHORT_TEXT = rb"|".join(rb"\x8c" + re.escape(bytes([n])) + b"." * n for n in range(13))
COMMON = re.compile(
    rb"(?:j....|h.|[\x94u}\]eaNs\x88\x89]|\((?![KMJIldt])|K." + _INT + rb"\x86|K.|"
    rb"(?:J....|M..)"
    + _INT
    + rb"\x86|J....|M..|"
    + _LONG1
    + rb"|\x8a\x09........[\x00\xff]|"
    + _SHORT_TEXT
    + rb""
    rb"|q.|r..\x00\x00|G........|p\d{1,5}\n|g\d{1,9}\n|" + _DECIMAL + rb"|L-?\d{1,20}L?\n"
    rb"|F[^\n]{1,40}\n|V[^\n]*\n){1,2000}",
    re.DOTALL,
)
# Containers of protocols 0 and 1, and tuples: of integers only.
_MARKED = re.compile(rb"\((?:[ld]|(?:" + _INT + rb"{0,8}|(?:" + _DECIMAL + rb"){0,8})t)", re.DOTALL)
_MARK_AND_INTEGER = re.compile(rb"\((?=[KMJI])")

# An event of torch takes 28 bytes at the very least and makes 1 to 4 containers. One empty container costs
# 64 bytes of memory for one byte of pickle: this keeps memory within about 30 × the size of the file.
_BYTES_PER_CONTAINER = 8
_FREE_CONTAINERS = 4096
# pickle numbers its memo in order, and what it numbers takes so many bytes at least.
_BYTES_PER_MEMO = 3

_ADVICE = "vramscope opens only plain data, as torch.cuda.memory._dump_snapshot writes it"
_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
PROBLEMS = (
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
)


def loads(data: bytes) -> tuple[Any, int]:
    """Return the object pickled in *data*, and the number of bytes after it.

    Raises FormatError on anything but plain data. It takes about as long as ``pickle.load``: the check costs
    as much as pausing the cyclic garbage collector saves. Three copies of *data* exist for a moment.
    """
    body = _unframed(data)
    end = verify(body)
    one_frame = b"\x80\x04\x95" + end.to_bytes(8, "little")
    file = io.BytesIO(b"".join((one_frame, memoryview(body)[:end])))
    n_trailing = len(body) - end
    del body
    with collector_off():
        try:
            return PlainUnpickler(file).load(), n_trailing
        except PROBLEMS as problem:
            raise FormatError(
                f"damaged pickle ({type(problem).__name__} while building it); copy or dump it again"
            ) from None


class PlainUnpickler(pickle.Unpickler):
    """Builds data that was verified before."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every import that a pickle requests."""
        raise FormatError(f"refused to import {module[:100]!r}.{name[:100]!r}; {_ADVICE}")


def _unframed(data: bytes) -> bytes:
    """Return *data* without its protocol and frame headers, so that no opcode hides in a frame's end."""
    if data[:1] != b"\x80":
        return data
    version = _number(data, 1, 1)
    if version > 5:
        raise FormatError(f"pickle protocol {version} does not exist: the file is damaged or no pickle")
    pieces, at = [], 2
    while at < len(data):
        end = _piece_end(data, at)
        pieces.append(memoryview(data)[at + 9 if data[at] == _FRAME else at : end])
        at = end
    return b"".join(pieces)


def _piece_end(data: bytes, at: int) -> int:
    """Return the end of the frame at *at*, of a long string between frames, or of the unframed rest."""
    if data[at] == _FRAME:
        end = at + 9 + _number(data, at + 1, 8)
    elif data[at] in _LONG_TEXT:
        end = _LONG_TEXT[data[at]](data, at)
    else:
        return len(data)
    if end > len(data):
        raise _truncated(data)
    return end


def verify(body: bytes) -> int:
    """Check every opcode up to STOP; return the position after it."""
    containers = len(body) - len(body.translate(None, b"}]\x86"))
    at = 0
    while True:
        if at >= len(body):
            raise _truncated(body)
        common = COMMON.match(body, at)
        if common is not None:
            at = common.end()
        elif body[at] == ord("."):
            break
        else:
            containers += body[at] == ord("(")
            at = _RARE.get(body[at], _refuse)(body, at)
    if containers > _FREE_CONTAINERS + len(body) // _BYTES_PER_CONTAINER:
        raise FormatError(f"{containers:,} lists and dicts in {at:,} bytes, to fill the memory; {_ADVICE}")
    return at + 1


def _truncated(data: bytes) -> FormatError:
    return FormatError(f"the file ends in the middle, after {len(data):,} bytes: copy it or dump it again")


def _number(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise _truncated(data)
    return int.from_bytes(data[at : at + width], "little")


def _refuse(data: bytes, at: int) -> int:
    """Raise FormatError with the name of the opcode that is not plain data, and of what it would import."""
    name = _NAMES.get(data[at])
    if name is None:
        raise FormatError(
            f"byte {at:,}: 0x{data[at]:02x} is no pickle opcode: the file is damaged or no pickle"
        )
    if data[at] in _PLAIN_OPCODES and len(data) - at < 64:
        raise _truncated(data)
    raise FormatError(
        f"byte {at:,}: refused {name}{_wanted(data, at)}: reading it could run code or rebuild objects, and "
        f"{_ADVICE}. Convert the file where you trust it, to plain dicts and lists"
    )


# Opcodes of plain data, refused for their argument only.
_PLAIN_OPCODES = frozenset(b"jh\x94u}]eaNs\x88\x89(KJM\x8a\x8cqrGpgILFVX\x8d\x80\x86")


def _wanted(data: bytes, at: int) -> str:
    """Return `` of module.name`` for opcodes that import; the words of the file are cut and quoted."""
    if data[at] in b"ci":  # GLOBAL, INST
        words = data[at + 1 : at + 200].split(b"\n")[:2]
    elif data[at] == 0x93:  # STACK_GLOBAL takes the two strings before it
        found = re.search(rb"\x8c.([ -~]+)\x94?\x8c.([ -~]+)\x94?$", data[max(at - 500, 0) : at], re.DOTALL)
        words = list(found.groups()) if found else []
    else:
        words = []
    return f" of {'.'.join(word.decode('ascii', 'replace') for word in words)!r}" if words else ""


def _text(width: int) -> Callable[[bytes, int], int]:
    """Return a function that skips a string after its length in *width* bytes."""

    def skip(data: bytes, at: int) -> int:
        return at + 1 + width + _number(data, at + 1, width)

    return skip


def _long_put(data: bytes, at: int) -> int:
    _check_memo(_number(data, at + 1, 4), data, at)
    return at + 5


def _decimal_put(data: bytes, at: int) -> int:
    line = re.compile(rb"p(\d{1,12})\n").match(data, at)
    if line is None:
        return _refuse(data, at)
    _check_memo(int(line[1]), data, at)
    return line.end()


def _check_memo(index: int, data: bytes, at: int) -> None:
    if index > len(data) // _BYTES_PER_MEMO:
        raise FormatError(
            f"byte {at:,}: memo index {index:,} in {len(data):,} bytes, to fill the memory; {_ADVICE}"
        )


def _marked(data: bytes, at: int) -> int:
    found = _MARKED.match(data, at) or _MARK_AND_INTEGER.match(data, at)
    return found.end() if found else _refuse(data, at)


_FRAME = 0x95
_LONG_TEXT = {ord("X"): _text(4), 0x8D: _text(8)}
_RARE: dict[int, Callable[[bytes, int], int]] = {
    0x8C: _text(1),
    **_LONG_TEXT,
    ord("r"): _long_put,
    ord("p"): _decimal_put,
    ord("("): _marked,
    ord(")"): lambda _, at: at + 1,
}
