"""What holds no data to read is called by its name, with what to do instead."""

import gzip
from pathlib import Path

import pytest

from vramscope.errors import FormatError
from vramscope.formats.unsupported import read, sniff
from vramscope.load import load

SHARED = Path(__file__).parents[3].parent / "shared"
KINDS = [
    (b"<html><head><title>GPU Memory Timeline HTML</title>", "a picture and no data"),
    (b"[[1756681317455142, 1756681317455149], [[0, 5, 0, 0, 0, 0, 0, 0, 0]]]", "sums by category"),
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
    assert "timeline.raw.json.gz" in str(caught.value)
    assert "_dump_snapshot" in str(caught.value)


def test_the_picture_of_a_real_timeline_is_refused():
    path = SHARED / "snapshots" / "timeline_gpu_adam.html"
    if not path.exists():
        pytest.skip("no shared snapshots")

    with pytest.raises(FormatError, match="a picture and no data"):
        load(path)


STRANGERS = [
    b"",
    b"<html><body>a page</body>",
    b"hello, world, again",
    b"{}",
    b"[1, 2]",
    b"[[1, 2], [3, 4]]",
    b"\x80\x04N.",
]


@pytest.mark.parametrize("data", STRANGERS)
def test_strangers_are_left_alone(data):
    assert not sniff(data, Path("x"))
