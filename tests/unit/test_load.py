"""One function opens whatever is at a path, and says what is wrong where nothing can be opened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vramscope import load as public_load
from vramscope.errors import FormatError, StoreError, UnknownNameError, UsageError
from vramscope.formats import Format
from vramscope.loading import HEAD_BYTES, discover, follow, load
from vramscope.model.device import Device, Process
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.trace import Trace
from vramscope.store.write.writer import Writer

MAGIC = b"# a format for tests\n"

heads: list[bytes] = []


def sniff(head: bytes, path: Path) -> bool:  # noqa: ARG001
    heads.append(head)
    return head.startswith(MAGIC)


def read(path: Path) -> Run:
    return Run(path.name, str(path), (Recording(),))


@pytest.fixture
def only_our_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry offers one small format, and the one that explains refusals."""
    refuses = Format("unsupported", lambda head, _path: head.startswith(b"<html>"), read)
    offered = {"ours": Format("ours", sniff, read), "unsupported": refuses}
    monkeypatch.setattr("vramscope.registry.parts", lambda *_, **__: offered)
    heads.clear()


def write_run(directory: Path, ranks: int = 1, modified_s: float | None = None) -> Path:
    for rank in range(ranks):
        writer = Writer(
            directory, source="simulated", process=Process(rank, ranks), devices=[Device()], started_ns=1
        )
        writer.append(Trace.of(size=[1, 2, 3]), 0)
        writer.close(Outcome.FINISHED)
    if modified_s is not None:
        for path in directory.glob("*/*"):
            os.utime(path, (modified_s, modified_s))
    return directory


def write_file(path: Path, content: bytes = MAGIC, modified_s: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified_s, modified_s))
    return path


def test_load_is_public() -> None:
    assert public_load is load


@pytest.mark.parametrize("kind", [Path, str])
def test_a_run_directory_is_loaded(tmp_path: Path, kind: Callable[[Path], Path | str]) -> None:
    run = load(kind(write_run(tmp_path / "run", ranks=2)))

    assert (run.name, list(run.ranks), run.outcome) == ("run", [0, 1], Outcome.FINISHED)


def test_the_directory_of_one_rank_is_loaded(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", ranks=2) / "rank1")

    assert list(run.ranks) == [1]


def test_a_directory_with_one_run_means_that_run(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one")

    assert load(tmp_path / "runs").name == "one"


def test_a_link_to_a_run_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(write_run(tmp_path / "run"))

    assert len(load(tmp_path / "latest").recordings[0].trace) == 3


@pytest.mark.usefixtures("only_our_format")
def test_a_foreign_file_is_loaded_by_the_format_that_knows_it(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.bin", MAGIC + b"x" * HEAD_BYTES)

    assert load(path).name == "x.bin"
    assert {len(head) for head in heads} == {HEAD_BYTES}


@pytest.mark.usefixtures("only_our_format")
@pytest.mark.parametrize("content", [b"nothing known"])
def test_a_file_of_no_known_format_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_file(tmp_path / "x.bin", content)

    with pytest.raises(FormatError, match=r"x\.bin \(\d+ B\): of no format .*; it seems to be"):
        load(path)


def test_a_real_directory_of_formats_is_asked(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="of no format"):
        load(write_file(tmp_path / "noise.bin", b"\x01\x02\x03 noise"))


def test_a_path_without_a_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="there is nothing"):
        load(tmp_path / "nowhere")


def test_a_directory_without_runs_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run in it; record one with vramscope\.record"):
        load(tmp_path)


def test_a_directory_with_several_runs_names_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name)

    with pytest.raises(UsageError, match=r"2 runs in it; say which: (.*one.*two|.*two.*one)"):
        load(tmp_path)


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_file(tmp_path / "x.bin")
    monkeypatch.setattr(Path, "open", refuse)

    with pytest.raises(FormatError, match=r"x\.bin: cannot be read \(Permission denied\)"):
        load(path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(FormatError, match="a pipe"):
        load(tmp_path / "pipe")


def test_a_follower_of_a_run_grows(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run", source="simulated", process=Process(), devices=[Device()], started_ns=1)
    follower = follow(tmp_path / "run")
    writer.append(Trace.of(size=[1]), 0)

    assert len(follower.run.recordings[0].trace) == 0
    assert follower.refresh()
    assert len(follower.run.recordings[0].trace) == 1
    assert not follower.refresh()


@pytest.mark.usefixtures("only_our_format")
def test_a_follower_of_a_file_stands_still(tmp_path: Path) -> None:
    follower = follow(write_file(tmp_path / "x.bin"))

    assert follower.run is follower.run
    assert not follower.refresh()


@pytest.mark.usefixtures("only_our_format")
def test_runs_and_files_are_discovered_newest_first(tmp_path: Path) -> None:
    old = write_run(tmp_path / "a" / "old", modified_s=1000)
    middle = write_file(tmp_path / "b" / "c" / "middle.bin", modified_s=2000)
    new = write_run(tmp_path / "new", ranks=2, modified_s=3000)
    write_file(tmp_path / "unknown.txt", b"unknown")
    write_file(tmp_path / "page.html", b"<html>")

    assert discover(tmp_path) == [new, middle, old]


@pytest.mark.usefixtures("only_our_format")
def test_what_is_hidden_installed_or_inside_a_run_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for place in (".git", "node_modules", "venv/site-packages", "run/rank0", "run"):
        write_file(tmp_path / place / "x.bin")
    write_file(tmp_path / ".hidden")

    assert discover(tmp_path) == [run]


@pytest.mark.usefixtures("only_our_format")
def test_discovery_does_not_leave_its_root(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    write_run(outside / "run")
    write_file(outside / "x.bin")
    root.mkdir()
    (root / "directory").symlink_to(outside)
    (root / "run").symlink_to(outside / "run")
    (root / "x.bin").symlink_to(outside / "x.bin")
    (root / "loop").symlink_to(root)

    assert discover(root) == []


@pytest.mark.usefixtures("only_our_format")
def test_what_is_itself_a_run_or_a_file_is_discovered(tmp_path: Path) -> None:
    run, known, unknown = (
        write_run(tmp_path / "run"),
        write_file(tmp_path / "x.bin"),
        write_file(tmp_path / "y", b""),
    )

    assert [discover(path) for path in (run, run / "rank0", known, unknown, tmp_path / "none")] == [
        [run],
        [run / "rank0"],
        [known],
        [],
        [],
    ]


@pytest.mark.usefixtures("only_our_format")
def test_of_very_many_files_only_the_newest_are_looked_into(tmp_path: Path) -> None:
    files = [write_file(tmp_path / f"{n}.bin", modified_s=1000 + n) for n in range(10)]

    assert discover(tmp_path, most_files=3) == files[:-4:-1]


def test_what_no_format_can_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    run = write_run(tmp_path / "run")
    part = next((run / "rank0").glob("events*"))

    with pytest.raises(UnknownNameError, match="leads nowhere"):
        load(tmp_path / "circle")
    with pytest.raises(FormatError, match="an empty file"):
        load(write_file(tmp_path / "empty.pickle", b""))
    with pytest.raises(FormatError, match=f"open the run: {run}"):
        load(part)


def test_a_file_that_changes_while_it_is_read_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed_meanwhile(path: Path) -> Run:
        path.write_bytes(MAGIC + b"more")
        return read(path)

    offered = {"ours": Format("ours", sniff, changed_meanwhile)}
    monkeypatch.setattr("vramscope.registry.parts", lambda *_, **__: offered)

    assert [note.code for note in load(write_file(tmp_path / "x.bin")).notes] == ["changed"]
