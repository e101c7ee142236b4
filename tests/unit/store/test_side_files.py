"""A file beside a trace is read within limits, whatever lies there under its name."""

import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from vramscope.remote.upload import STATE_FILE, read_state
from vramscope.store import prediction, sources
from vramscope.store.read import side_file
from vramscope.store.summaries import parse_summary, read_summary

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "transformer" / "rank0"


def hole(path):
    with path.open("wb") as file:
        file.truncate(3 << 30)


ODD = {
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("p")), path.symlink_to("p")),
    "a folder": Path.mkdir,
    "a hole of 3 GiB": hole,
    "a file of the kernel that has no size": lambda path: path.symlink_to("/proc/self/environ"),
    "brackets": lambda path: path.write_text("[" * 100_000),
    "nested objects": lambda path: path.write_text('{"a":' * 50_000),
    "NaN": lambda path: path.write_text('{"sent": NaN, "trace": Infinity}'),
    "a long number": lambda path: path.write_text('{"files": %s}' % ("9" * 5000)),
    "a list": lambda path: path.write_text("[]"),
    "no UTF-8": lambda path: path.write_bytes(b'{"\xff": 1}'),
    "nothing": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_every_reader_ends_and_has_nothing(tmp_path, odd):
    for number, name in enumerate(("summary.json", "sources.json", "prediction.json", STATE_FILE)):
        (tmp_path / str(number)).mkdir()
        odd(tmp_path / str(number) / name)

    assert read_summary(tmp_path / "0" / "summary.json") is None
    assert sources.read(tmp_path / "1" / "sources.json") == {}
    assert prediction.read(tmp_path / "2", "x")[0] is None
    assert read_state(tmp_path / "3") is None


def changed(path, value):
    """A summary with one value replaced, and its checksum made right again."""
    document = json.loads((SAMPLE / "summary.json").read_bytes())
    at = document
    for key in path[:-1]:
        at = at[key]
    assert path[-1] in at or isinstance(at, list)
    at[path[-1]] = value
    document.pop("crc32")
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in document.items())
    body = ("{\n " + ",\n ".join(lines)).encode()
    return body + f',\n "crc32": {zlib.crc32(body)}\n}}\n'.encode()


@pytest.mark.parametrize("value", ["../x", float("nan"), 10**30, None, [], {"a": 1}, 1.5, True])
@pytest.mark.parametrize(
    "path",
    [
        ("process", "rank"),
        ("devices", 0, "events"),
        ("devices", 0, "device", "index"),
        ("devices", 0, "end", "allocated"),
        ("devices", 0, "lines", 0, 0),
        ("frames", 0, 2),
        ("started_ns",),
    ],
)
def test_a_summary_with_a_value_of_another_type_is_none(path, value):
    assert parse_summary(changed(path, 5)) is not None
    assert parse_summary(changed(path, value)) is None


def test_what_a_writer_wrote_is_read():
    assert read_summary(SAMPLE / "summary.json") is not None


def test_a_file_of_exactly_the_limit_is_read_and_one_more_byte_is_not(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(b"a" * 1000)

    assert side_file.content(file, 1000) == b"a" * 1000
    with pytest.raises(OSError, match="larger"):
        side_file.content(file, 999)


def test_ranks_are_compared_beside_a_pipe(tmp_path):
    from vramscope.fleet import known_summary

    shutil.copytree(SAMPLE, tmp_path / "rank0")
    (tmp_path / "rank0" / "summary.json").unlink()
    os.mkfifo(tmp_path / "rank0" / "summary.json")

    assert known_summary(tmp_path / "rank0") is None
