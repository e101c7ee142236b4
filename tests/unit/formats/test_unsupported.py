"""What holds no data to read is called by its name, with what to do instead."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import captures
import pytest
import torch

from vramscope.errors import FormatError
from vramscope.formats.unsupported import read, sniff
from vramscope.loading import load

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


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"anything")
    return file.getvalue()


def in_tar(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        about = tarfile.TarInfo("snapshot.pickle")
        about.size = len(data)
        archive.addfile(about, io.BytesIO(data))
    return file.getvalue()


def saved_before_1_6() -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(3)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


PACKED = [
    (saved_before_1_6(), "torch.save wrote before torch 1.6", "_dump_snapshot"),
    (zipped("snapshot.pickle"), "a zip archive", "unpack it"),
    (zipped("archive/data.pkl"), "torch.save", "data.pkl"),
    (bz2.compress(b"\x80\x04N."), "bzip2", "unpack it"),
    (lzma.compress(b"\x80\x04N."), "xz", "unpack it"),
    (b"\x28\xb5\x2f\xfd....", "zstd", "unpack it"),
    (gzip.compress(gzip.compress(b"\x80\x04N.")), "gzip twice", "unpack it"),
    (in_tar(b"\x80\x04N."), "a tar archive", "unpack it"),
    (gzip.compress(in_tar(b"\x80\x04N.")), "a tar archive", "unpack it"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS", "git lfs pull"),
]


@pytest.mark.parametrize(("data", "name", "advice"), PACKED, ids=[str(i) for i in range(len(PACKED))])
def test_what_is_packed_otherwise_is_named_with_what_to_do(tmp_path, data, name, advice):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)

    with pytest.raises(FormatError, match=name) as caught:
        load(path)

    assert advice in str(caught.value)


def test_the_picture_of_a_real_timeline_is_refused():
    path = captures.OTHERS / "timeline_gpu_adam.html"
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


TEXTS = [
    (
        "2026-11-20 12:00:00,123 INFO step 1, loss 2.1\n2026-11-20 12:00:01,120 INFO step 2, loss 2.0\n",
        "a text",
    ),
    ("trainer: epoch 1, loss 2.1\ntrainer: epoch 2, loss 2.0\n", "a text"),
    ("step,loss,lr\n1,2.1,0.1\n2,2.0,0.1\n", "a table in which no column"),
]


@pytest.mark.parametrize(("text", "name"), TEXTS)
def test_a_text_with_commas_is_a_table_only_if_it_has_a_head(tmp_path, text, name):
    path = tmp_path / "file.log"
    path.write_text(text)

    with pytest.raises(FormatError, match=name):
        load(path)
