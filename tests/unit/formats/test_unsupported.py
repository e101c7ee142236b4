"""What cannot be opened yet is called by its name, with what to do instead."""

import gzip
from pathlib import Path

import pytest

from vramscope.errors import FormatError
from vramscope.formats.unsupported import read, sniff

KINDS = [
    (b'{"schemaVersion": 1, "traceEvents": []}', "Kineto"),
    (b"<html><head><title>GPU Memory Timeline HTML</title>", "a picture and no data"),
    (
        b"[[-1, 1, 37632, 0], [-1, 1, 602112, 2], [5, 2, 256, 0], [6, 4, 8, 7]]",
        "memory timeline",
    ),
    (b"timestamp, name, memory.used [MiB]\n2026/01/03 15:36:53.507, RTX, 1129 MiB\n", "nvidia-smi"),
    (b"2026/04/25 16:06:06.780, 0 %, 0 %, 2 MiB, 20146 MiB, 27, 11.64 W\n", "nvidia-smi"),
    (b"|====|\n| PyTorch CUDA memory summary, device ID 0 |", "memory_summary"),
    (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out-of-memory"),
]


@pytest.mark.parametrize(("data", "name"), KINDS, ids=[name for _, name in KINDS])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_each_kind_is_named_and_something_else_advised(tmp_path, data, name, pack):
    path = tmp_path / "file"
    path.write_bytes(pack(data))
    assert sniff(path.read_bytes(), path)

    with pytest.raises(FormatError) as caught:
        read(path)

    assert name in str(caught.value)
    assert "not supported yet; record " in str(caught.value)


STRANGERS = [b"", b"hello, world, again", b"{}", b"[1, 2]", b"[[1, 2], [3, 4]]", b"\x80\x04N."]


@pytest.mark.parametrize("data", STRANGERS)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x"))
