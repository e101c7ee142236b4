"""Brotli's format, which the Arrow library brings along; no package is installed for it."""

import pyarrow as pa

_NAME = "brotli"


def is_available() -> bool:
    """Return whether this build of the Arrow library has Brotli: the one of PyPI has it."""
    return bool(pa.Codec.is_available(_NAME))


def pack(data: bytes, level: int) -> bytes:
    """Return *data* compressed; levels are 0 (fast) to 11 (small)."""
    return pa.Codec(_NAME, compression_level=level).compress(data, asbytes=True)
