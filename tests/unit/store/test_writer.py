"""The writer either has a batch on its way to the disk, or says why not and leaves the file as it was."""

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from vramscope.errors import StoreError
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Recording
from vramscope.model.trace import Trace
from vramscope.store import manifest
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

NewWriter = Callable[..., Writer]


def only(run_dir: Path) -> Recording:
    (recording,) = Reader(run_dir).run.recordings
    return recording


def fail(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_directory_that_holds_this_rank_is_refused(run_dir: Path, new_writer: NewWriter) -> None:
    new_writer().append(Trace.of(size=[1]), 0)

    with pytest.raises(StoreError, match="there is a run already"):
        new_writer()
    assert only(run_dir).trace.size.tolist() == [1]


def test_a_run_continues_after_it_was_closed(run_dir: Path, new_writer: NewWriter) -> None:
    writer = new_writer()
    for batch in range(3):
        writer.append(Trace.of(size=[batch]), 0)
        writer.close(Outcome.FINISHED)
        writer.reopen()
    running = Reader(run_dir).run
    writer.append(Trace.of(size=[3]), 0)
    writer.close(Outcome.FAILED, "KeyboardInterrupt")
    run = Reader(run_dir).run

    assert (running.outcome, running.error) == (Outcome.RUNNING, "")
    assert (run.outcome, run.error) == (Outcome.FAILED, "KeyboardInterrupt")
    assert run.recordings[0].trace.size.tolist() == [0, 1, 2, 3]


def test_a_closed_writer_says_how_to_go_on(new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.close(Outcome.FINISHED)

    with pytest.raises(StoreError, match=r"reopen\(\)"):
        writer.append(Trace.of(size=[1]), 0)


def test_closing_again_changes_nothing(run_dir: Path, new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.close(Outcome.FAILED, "first")
    writer.close(Outcome.FINISHED)

    assert Reader(run_dir).run.error == "first"


def test_written_bytes_count_what_is_on_the_disk(run_dir: Path, new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=range(1000)), 0)
    writer.note(Note("gap", "x"))

    assert writer.written_bytes == sum(path.stat().st_size for path in (run_dir / "rank0").iterdir())


def test_the_end_waits_for_the_disk_but_not_after_every_step(
    new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    writer = new_writer()
    for _ in range(20):
        writer.append(Trace.of(size=[1]), 0)
        writer.close(Outcome.FINISHED)
        writer.reopen()

    assert len(synced) == 2  # the events and the manifest, once


def test_an_empty_table_writes_nothing(run_dir: Path, new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.append(Trace.of(), 0)
    writer.stacks([])
    writer.pools([], 0)

    assert [path.name for path in (run_dir / "rank0").iterdir()] == ["manifest.json"]


def test_threads_that_write_together_do_not_mix_their_batches(run_dir: Path, new_writer: NewWriter) -> None:
    writer = new_writer()
    threads = [
        Thread(target=lambda n=n: [writer.append(Trace.of(size=[n] * 50), 0) for _ in range(40)], daemon=True)
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = only(run_dir).trace.size.reshape(-1, 50)

    assert len(sizes) == 160
    assert (sizes == sizes[:, :1]).all()


def test_a_fork_cannot_write_into_its_parents_trace(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer()
    monkeypatch.setattr(os, "getpid", lambda: 1)

    for act in (lambda: writer.append(Trace.of(size=[1]), 0), lambda: writer.close(Outcome.FINISHED)):
        with pytest.raises(StoreError, match="a fork of it cannot write"):
            act()
    assert json.loads((run_dir / "rank0" / "manifest.json").read_text())["outcome"] == "running"


class FullDisk:
    """``os.write`` that takes some bytes more and then fails, like a disk that fills up."""

    def __init__(self, room_bytes: int, number: int = errno.ENOSPC) -> None:
        self.room_bytes, self.number, self.write = room_bytes, number, os.write

    def __call__(self, fd: int, data: memoryview) -> int:
        if not self.room_bytes:
            raise fail(self.number)
        written = self.write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written


@pytest.mark.parametrize("room_bytes", [0, 1, 7, 500, 20_000])
def test_a_full_disk_stops_the_writer_and_loses_nothing_written(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=range(1000)), 0)
    size = (run_dir / "rank0" / "events-0.arrows").stat().st_size
    monkeypatch.setattr(os, "write", FullDisk(room_bytes))
    with pytest.raises(StoreError, match=r"events-0\.arrows: cannot write .*free some space"):
        writer.append(Trace.of(size=range(1000, 2000)), 0)
    monkeypatch.undo()

    with pytest.raises(StoreError, match="free some space"):
        writer.append(Trace.of(size=range(2000, 3000)), 0)
    writer.close(Outcome.FINISHED)
    recording = only(run_dir)
    assert (run_dir / "rank0" / "events-0.arrows").stat().st_size == size
    assert recording.trace.size.tolist() == list(range(1000))
    assert [note.code for note in recording.notes] == ["stopped"]
    assert "No space left" in recording.notes[0].text


def test_a_torn_batch_that_cannot_be_cut_off_poisons_nothing(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _size: int) -> None:
        raise fail(errno.EIO)

    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "write", FullDisk(100))
    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(StoreError):
        writer.append(Trace.of(size=[2]), 0)
    monkeypatch.undo()
    writer.close(Outcome.FINISHED)

    assert only(run_dir).trace.size.tolist() == [1]
    assert [(note.code, note.value) for note in only(run_dir).notes if note.code == "truncated"] == [
        ("truncated", 100)
    ]


def test_a_write_in_pieces_gives_the_same_file(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:13]))
    new_writer().append(Trace.of(size=range(100)), 0)

    assert only(run_dir).trace.size.tolist() == list(range(100))


@pytest.mark.parametrize("taken_bytes", [0, 40, 10**9])
def test_an_interrupt_leaves_the_batch_whole(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch, taken_bytes: int
) -> None:
    write = os.write

    def interrupted(fd: int, data: memoryview) -> int:
        monkeypatch.setattr(os, "write", write)
        write(fd, data[:taken_bytes])
        raise KeyboardInterrupt

    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(Trace.of(size=[2]), 0)
    writer.append(Trace.of(size=[3]), 0)

    assert only(run_dir).trace.size.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "a directory of your own"),
        (errno.EROFS, "read-only: record to another directory"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "record to another directory"),
    ],
)
def test_a_stream_that_cannot_be_opened_says_what_to_do(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: object) -> int:
        raise fail(number)

    writer = new_writer()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=advice):
        writer.append(Trace.of(size=[1]), 0)
    monkeypatch.undo()

    assert only(run_dir).trace.size.tolist() == []


def test_a_directory_that_cannot_be_made_says_what_to_do(
    new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise fail(errno.EACCES)

    monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(StoreError, match=r"rank0: cannot write .*a directory of your own"):
        new_writer()


def test_a_file_in_the_place_of_the_directory_is_refused(run_dir: Path, new_writer: NewWriter) -> None:
    run_dir.write_text("")

    with pytest.raises(StoreError, match="record to another directory"):
        new_writer()


def test_a_start_without_room_leaves_the_place_free(
    run_dir: Path, new_writer: NewWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise fail(errno.ENOSPC)

    monkeypatch.setattr(manifest, "write", refuse)
    with pytest.raises(StoreError, match="free some space"):
        new_writer()
    monkeypatch.undo()
    new_writer()

    assert Reader(run_dir).run.outcome is Outcome.RUNNING


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def takes_a_batch(writer: Writer) -> bool:
    try:
        writer.append(Trace.of(size=np.arange(1000)), 0)
    except StoreError:
        return False
    return True


def test_a_disk_that_is_really_full_keeps_all_but_the_last_batch(
    small_disk: Path, new_writer: NewWriter
) -> None:
    writer = new_writer(small_disk / "run")
    n_batches = next(batch for batch in range(100) if not takes_a_batch(writer))
    with pytest.raises(StoreError, match="the disk is full"):
        writer.append(Trace.of(size=[1]), 0)
    with suppress(StoreError):  # there may be room for the manifest, or not
        writer.close(Outcome.FINISHED)

    assert 0 < n_batches < 6
    assert len(only(small_disk / "run").trace) == n_batches * 1000
