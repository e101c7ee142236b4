"""The opcodes that a pickle of plain data consists of, of protocol 4 or 5, as patterns."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def _sized(opcode: bytes, sizes: Iterable[int]) -> bytes:
    return opcode + rb"(?:" + b"|".join(re.escape(bytes([n])) + b"." * n for n in sizes) + rb")"


_VALUES = (
    rb"j....|h.|K.|M..|J....|"
    + _sized(rb"\x8a", (6, 7, 5, 4, 8, 0, 1, 2, 3, 9))
    + rb"|"
    + _sized(rb"\x8c", range(24))
    + rb"|G........"
)
_ANY = rb"(?:" + _VALUES + rb"|[\x94u}\]eaNs\x88\x89\x86()])"
OPCODE = re.compile(_ANY, re.DOTALL)
OPCODES = re.compile(_ANY + rb"{1,2000}", re.DOTALL)
FIRST_BYTES = frozenset(b"jhKMJ\x8a\x8cG\x94u}]eaNs\x88\x89\x86()")
"""The bytes with which an opcode may begin."""
LONGEST = 2 + 255
"""The length in bytes of the longest opcode, but for strings."""
TEXT = {0x8C: 1, ord("X"): 4, 0x8D: 8}
"""The opcodes of strings, each with the bytes of their length."""

_MANY_VALUES = re.compile(rb"(?:" + _VALUES + rb")+", re.DOTALL)
_VALUE = re.compile(_VALUES, re.DOTALL)


def n_memoized(opcodes: bytes) -> int:
    """Return the number of objects that *opcodes* add to the memo."""
    return _MANY_VALUES.sub(b"", opcodes).count(b"\x94")


def get(memo: int) -> bytes:
    """Return the opcode that pushes an object of the memo."""
    return b"h" + bytes([memo]) if memo < 256 else b"j" + memo.to_bytes(4, "little")


def references(opcodes: bytes) -> list[int]:
    """Return the offsets of the opcodes that push an object of the memo."""
    # Opcodes without a value are single bytes with which no value begins, so the search skips them.
    return [found.start() for found in _VALUE.finditer(opcodes) if opcodes[found.start()] in b"hj"]


def memo_indices(opcodes: bytes | bytearray, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the memo index of each of the references *at* offsets of *opcodes*."""
    padded = np.frombuffer(bytes(opcodes) + bytes(4), "u1")
    found = padded[at + 1].astype("i8")
    for byte in range(1, 4):
        found += np.where(padded[at] == ord("j"), padded[at + 1 + byte], 0).astype("i8") << 8 * byte
    return found


def write_memo_indices(opcodes: bytearray, at: NDArray[np.int64], memo: NDArray[np.int64]) -> None:
    """Write other memo indices, none larger than before, to the references *at* offsets of *opcodes*."""
    data = np.frombuffer(opcodes, "u1")
    data[at + 1] = memo & 0xFF
    long = data[at] == ord("j")
    for byte in range(1, 4):
        data[at[long] + 1 + byte] = memo[long] >> 8 * byte & 0xFF
