"""The names of torch's and Python's own files and functions, of all versions that were at hand.

They are shipped, not looked up in what is installed: an export is made on a laptop without torch as well, or
with another one. A path does not tell either, as anybody's folder may be called ``torch``. What a newer one
has is not known yet and is numbered: too much is hidden then, never too little.
``scripts/public_names.py`` writes the file.
"""

from functools import cache
from hashlib import blake2s
from pathlib import Path

FILE = Path(__file__).with_name("_public_names.bin")
_DIGEST_BYTES = 5


def digest(name: str) -> bytes:
    """Return what stands for a name in the file."""
    return blake2s(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def is_public(name: str) -> bool:
    """Return whether a file, a ``file:function``, a ``word:`` of C++ or of a node is torch's or Python's."""
    return digest(name) in _digests()


@cache
def _digests() -> frozenset[bytes]:
    data = FILE.read_bytes()
    return frozenset(data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES))
