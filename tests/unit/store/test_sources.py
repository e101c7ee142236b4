"""The source lines of a recording: only what frames name is kept, within a limit, and damage is no error."""

import json
from pathlib import Path

import pytest

from vramscope.model.stacks import Frame
from vramscope.store import sources


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text("\n".join(f"line_{n} = {n}" for n in range(1, 101)))
    return path


def test_the_lines_around_each_frame_are_kept_and_come_back(module: Path, tmp_path: Path) -> None:
    found = sources.collect([Frame("f", str(module), 2), Frame("g", str(module), 50)])
    sources.write(tmp_path / "sources.json", "abc", found)
    again = sources.read(tmp_path / "sources.json", "abc")[str(module)]

    assert list(again.lines) == [*range(1, 7), *range(46, 55)]
    assert again.lines[50] == "line_50 = 50"
    assert (again.n_lines, again.modified_ns) == (100, module.stat().st_mtime_ns)


def test_no_file_but_python_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("password")
    (tmp_path / "link.py").symlink_to(tmp_path / "secret.txt")
    named = [str(tmp_path / name) for name in ("secret.txt", "link.py", "absent.py")]

    assert sources.collect([Frame("f", name, 1) for name in [*named, "model.py", "<stdin>"]]) == {}


def test_the_file_stays_below_its_limit_and_keeps_what_most_frames_name(tmp_path: Path) -> None:
    frames = []
    for i in range(30):
        path = tmp_path / f"m{i}.py"
        path.write_text("\n".join("x" * 300 for _ in range(400)))
        frames += [Frame("f", str(path), n) for n in range(1, 400, 9 + i)]
    n_files = sources.write(tmp_path / "sources.json", "", sources.collect(frames))

    assert (tmp_path / "sources.json").stat().st_size <= sources.LARGEST_BYTES
    kept = sources.read(tmp_path / "sources.json")
    assert list(kept) == [str(tmp_path / f"m{i}.py") for i in range(n_files)]
    assert n_files


NEWER = '{"format": "vramscope sources", "schema": {"major": 9}, "files": {}}'
DAMAGED = ["", "{", "[]", "null", '{"format": "vramscope sources"}', "[" * 100_000, NEWER]


@pytest.mark.parametrize("text", DAMAGED)
def test_what_is_damaged_or_newer_is_as_if_absent(text: str, tmp_path: Path) -> None:
    (tmp_path / "sources.json").write_text(text)

    assert sources.read(tmp_path / "sources.json") == {}


def test_the_lines_of_another_trace_are_not_shown(module: Path, tmp_path: Path) -> None:
    sources.write(tmp_path / "sources.json", "abc", sources.collect([Frame("f", str(module), 2)]))
    assert json.loads((tmp_path / "sources.json").read_text())["schema"] == {"major": 1, "minor": 0}

    assert sources.read(tmp_path / "sources.json", "other") == {}
    assert sources.read(tmp_path / "sources.json") != {}
