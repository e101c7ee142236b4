"""A picture of colored pixels as a PNG in a data URI, for figures that no script paints."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def data_uri(pixels: NDArray[Any]) -> str:
    """Return the PNG of *pixels*.

    They are red, green, blue and opacity as bytes, shape (rows, columns, 4), the top row first.
    """
    height, width = pixels.shape[:2]
    # Each row of a PNG begins with its filter; 0 is none.
    rows = np.insert(pixels.astype("u1").reshape(height, -1), 0, 0, axis=1)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 6)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return f"data:image/png;base64,{base64.b64encode(_SIGNATURE + body).decode()}"
