"""A disk that refuses, and programs that put files of their own in the way: what became of a run is true."""

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vramscope import record
from vramscope.errors import StoreError
from vramscope.loading import load
from vramscope.model.marks import Marks
from vramscope.model.recording import Outcome
from vramscope.model.trace import Trace
from vramscope.store.read.rank import RankReader
from vramscope.store.write.own_file import OwnFile, replace_file
from vramscope.store.write.writer import Writer

HOW_IT_FAILS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ESTALE, errno.EAGAIN]


def failing(number: int):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def end_of(run: Path):
    """How the recording ends, as a stranger's JSON reader and as ours see it."""
    document = json.loads((run / "rank0" / "manifest.json").read_text())
    (recording,) = load(run).recordings
    assert document["outcome"] == recording.outcome.value
    return document, [note.code for note in recording.notes]


@pytest.mark.parametrize("number", HOW_IT_FAILS)
def test_the_end_is_told_on_a_disk_that_takes_nothing_any_more(run_dir, new_writer, monkeypatch, number):
    writer = new_writer()
    writer.append(Trace.of(size=[1, 2]), 0)
    monkeypatch.setattr(os, "write", failing(number))
    with pytest.raises(StoreError):
        writer.append(Trace.of(size=[3]), 0)
    writer.close(Outcome.FINISHED)
    monkeypatch.undo()

    document, notes = end_of(run_dir)
    assert document["outcome"] == "finished"
    assert os.strerror(number) in document["stopped"]
    assert notes == ["stopped"]
    assert load(run_dir).recordings[0].trace.size.tolist() == [1, 2]


def opening_without(flag, number):
    """``os.open`` that fails with error *number* wherever it is given *flag*."""
    with_all = os.open

    def refusing(path, flags, *more, **by_name):
        if flags & flag:
            failing(number)()
        return with_all(path, flags, *more, **by_name)

    return refusing


def test_the_end_is_told_where_no_file_can_be_made(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "open", opening_without(os.O_CREAT, errno.ENOSPC))
    with pytest.raises(StoreError, match=r"manifest\.json: cannot write"):
        writer.close(Outcome.FINISHED)
    monkeypatch.undo()

    document, notes = end_of(run_dir)
    assert document["outcome"] == "finished"
    assert document["files"]["events-0.arrows"]["rows"] == 1
    assert notes == ["stopped"]


def test_a_disk_that_confirms_nothing_is_told_once(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StoreError, match="Input/output error"):
        writer.close(Outcome.FINISHED)
    writer.close(Outcome.FINISHED)
    monkeypatch.undo()

    document, notes = end_of(run_dir)
    assert document["outcome"] == "finished"
    assert notes == ["stopped"]


def test_a_long_reason_still_fits(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot write"):
        writer.append(Trace.of(size=[1]), 0)
    writer.close(Outcome.FAILED, "ValueError: " + "ü" * 20_000)
    monkeypatch.undo()

    document, _ = end_of(run_dir)
    assert document["outcome"] == "failed"
    assert document["error"].startswith("ValueError: üü")


def test_a_write_of_no_bytes_is_an_error_and_no_endless_loop(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with pytest.raises(StoreError, match="takes no more bytes"):
        writer.append(Trace.of(size=[2]), 0)
    writer.close(Outcome.FINISHED)
    monkeypatch.undo()

    assert end_of(run_dir)[1] == ["stopped"]


@pytest.mark.parametrize("write", [failing(errno.EREMOTEIO), failing(errno.ENXIO), lambda *_: 0])
def test_the_end_is_told_where_not_one_byte_can_be_written(run_dir, new_writer, monkeypatch, write):
    writer = new_writer()
    writer.append(Trace.of(size=[1, 2]), 0)
    follower = RankReader(run_dir / "rank0")
    follower.refresh()
    assert follower.recordings()[0].outcome is Outcome.RUNNING
    for call in ("write", "pwrite", "writev", "pwritev", "open"):
        monkeypatch.setattr(os, call, opening_without(os.O_CREAT, 5) if call == "open" else write)
    with pytest.raises(StoreError, match="cannot write"):
        writer.append(Trace.of(size=[3]), 0)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot write"):
            writer.close(Outcome.FAILED, "StoreError: …")
    monkeypatch.undo()

    (recording,) = load(run_dir).recordings
    assert follower.refresh()
    for told in (recording, *follower.recordings()):
        assert told.outcome is Outcome.FAILED
        assert [note.code for note in told.notes] == ["stopped"]
        assert "manifest.json: cannot write (" in told.notes[0].text
        assert told.trace.size.tolist() == [1, 2]
    assert len(list(run_dir.glob("rank0/end-*"))) == 1


def test_the_end_is_told_where_a_later_block_cannot_begin(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1, 2]), 0)
    writer.close(Outcome.FINISHED)
    for call in ("write", "pwrite"):
        monkeypatch.setattr(os, call, lambda *_: 0)
    for do in (writer.reopen, lambda: writer.close(Outcome.FAILED, "StoreError: …")):
        with pytest.raises(StoreError, match="cannot write"):
            do()
    monkeypatch.undo()

    (recording,) = load(run_dir).recordings
    assert recording.outcome is Outcome.FAILED
    assert [note.code for note in recording.notes] == ["stopped"]


def test_a_name_that_tells_an_end_counts_only_where_no_later_one_was_written(run_dir, new_writer):
    new_writer().close(Outcome.FINISHED)
    for name in ("end-failed-17-EIO", "end-failed-17-__doc__", "end-died-17-EIO", f"end-failed-{2**63}-EIO"):
        (run_dir / "rank0" / name).mkdir()
    assert end_of(run_dir)[0]["outcome"] == "finished"


@pytest.mark.parametrize("n_left", [0, 300_000])
def test_a_run_in_a_deleted_directory_leaves_the_next_one_alone(run_dir, new_writer, n_left):
    first = new_writer()
    first.append(Trace.of(size=[1]), 0)
    shutil.rmtree(run_dir)
    second = new_writer(started_ns=2)
    second.append(Trace.of(size=[7] * (1 + n_left)), 0)
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        first.append(Trace.of(size=[2]), 1)
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        first.close(Outcome.FINISHED)
    second.close(Outcome.FINISHED)

    (recording,) = load(run_dir).recordings
    assert recording.notes == ()
    assert set(recording.trace.size.tolist()) == {7}


def test_a_run_of_closed_blocks_leaves_the_next_one_alone(run_dir, new_writer):
    first = new_writer()
    first.append(Trace.of(size=[1]), 0)
    first.close(Outcome.FINISHED)
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    second = new_writer(started_ns=2)
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        first.reopen()
    second.append(Trace.of(size=[7]), 0)
    second.close(Outcome.FINISHED)

    assert load(run_dir).recordings[0].notes == ()


def test_a_moved_run_is_ended_where_it_is(run_dir, new_writer):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    run_dir.rename(run_dir.with_name("moved"))
    with pytest.raises(StoreError, match="deleted, moved or replaced"):
        writer.append(Trace.of(size=[2]), 0)
    writer.close(Outcome.FAILED, "stopped")

    document, notes = end_of(run_dir.with_name("moved"))
    assert "moved" in document["stopped"]
    assert notes == ["stopped"]


@pytest.mark.parametrize("name", ["events-0.arrows", "marks-0.arrows", "stacks.arrows"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_foreign_stream_is_left_alone(tmp_path, run_dir, new_writer, name, is_link):
    writer = new_writer()
    place = run_dir / "rank0" / name
    victim = tmp_path / "victim" if is_link else place
    victim.write_text("precious")
    if is_link:
        place.symlink_to(victim)

    with pytest.raises(StoreError, match="cannot write"):
        _write_everything(writer)
    writer.close(Outcome.FINISHED)
    assert victim.read_text() == "precious"
    assert json.loads((run_dir / "rank0" / "manifest.json").read_text())["stopped"]


def _write_everything(writer: Writer) -> None:
    writer.append(Trace.of(size=[1]), 0)
    writer.append(Marks.of(kind=[1]), 0)
    writer.stacks([(0, "f", "f.py", 1)])


def test_a_foreign_file_between_two_blocks_is_left_alone(run_dir, new_writer):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    writer.close(Outcome.FINISHED)
    events = run_dir / "rank0" / "events-0.arrows"
    text = b"x" * events.stat().st_size
    # While the old file has a name, the new one cannot get its inode.
    (run_dir.parent / "old").hardlink_to(events)
    events.unlink()
    events.write_bytes(text)
    writer.reopen()
    with pytest.raises(StoreError, match="another program changed the file"):
        writer.append(Trace.of(size=[2]), 0)
    writer.close(Outcome.FINISHED)

    assert events.read_bytes() == text


@pytest.mark.parametrize("has_its_inode", [False, True])
def test_a_foreign_manifest_is_left_alone(run_dir, new_writer, has_its_inode):
    writer = new_writer()
    manifest = run_dir / "rank0" / "manifest.json"
    theirs = manifest if has_its_inode else run_dir / "theirs"  # a deleted file's inode is given away again
    theirs.write_text("mine")
    theirs.replace(manifest)
    with pytest.raises(StoreError, match="another program put a file of its own there"):
        writer.close(Outcome.FINISHED)

    assert manifest.read_text() == "mine"


def test_no_link_is_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "summary.json").symlink_to(victim)
    replace_file(tmp_path / "summary.json", b"ours")

    assert victim.read_text() == "precious"
    assert not (tmp_path / "summary.json").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.json", "victim"]


def test_a_file_of_ours_is_replaced_only_while_it_is_ours(tmp_path):
    file = OwnFile(tmp_path / "summary.json")
    file.replace(b"first")
    file.replace(b"second")
    assert (tmp_path / "summary.json").read_bytes() == b"second"
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "theirs").replace(tmp_path / "summary.json")
    with pytest.raises(FileExistsError):
        file.replace(b"third")
    file.remove()
    assert (tmp_path / "summary.json").read_bytes() == b"theirs"


PROGRAM = """
import os, resource, signal, sys, torch, vramscope
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
layer = torch.nn.Linear(64, 64)
with vramscope.record(sys.argv[1], quiet=True) as recorder:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    for _ in range(40):
        layer(torch.ones(8, 64)).sum().backward()
        recorder.flush()
sys.exit(7)
"""


def test_report_says_in_its_first_line_that_a_program_went_on(tmp_path):
    run = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, run], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 7
    assert "stopped recording, training goes on" in ended.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "vramscope", "report", run],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    first = next(line for line in shown.stdout.splitlines() if line.strip())
    assert "the recording stopped before the program did" in first
    assert "died" not in shown.stdout


def test_a_directory_that_could_be_made_and_not_opened_is_gone_and_none_of_another_run(tmp_path, monkeypatch):
    """A program without a descriptor left gets no further directory: there were 9,999 of them once."""
    monkeypatch.setattr(os, "open", opening_without(os.O_DIRECTORY, errno.EMFILE))
    with pytest.warns(RuntimeWarning, match="Too many open files"), record(tmp_path / "run", quiet=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_block_that_cannot_go_on_ends_the_recording_and_says_so(tmp_path, monkeypatch, is_directory):
    with record(tmp_path / "run", quiet=True) as recorder:
        torch.ones(100)
    with_all = os.open

    def refusing(path, flags, *more, **by_name):
        # Threads of other tests' recordings open theirs meanwhile.
        of_run = str(path).startswith(str(tmp_path))
        if of_run and flags & os.O_DIRECTORY if is_directory else str(path).endswith("manifest.json"):
            monkeypatch.undo()
            failing(errno.EIO)()
        return with_all(path, flags, *more, **by_name)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.warns(RuntimeWarning, match="Input/output error"), recorder:
        torch.ones(100)
    with recorder:
        torch.ones(100)

    document, notes = end_of(tmp_path / "run")
    assert "Input/output error" in document["stopped"]
    assert "stopped" in notes


def test_an_end_that_the_disk_refuses_is_written_when_the_program_ends(run_dir, new_writer, monkeypatch):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(StoreError, match="Permission denied"):
        writer.close(Outcome.FINISHED)
    monkeypatch.undo()
    writer.close(Outcome.FINISHED)

    document, notes = end_of(run_dir)
    assert document["outcome"] == "finished"
    assert "Permission denied" in document["stopped"]
    assert notes == ["stopped"]


def test_a_program_without_descriptors_is_told_to_have_gone_on(run_dir, new_writer):
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limit[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(StoreError, match="Too many open files"):
            writer.append(Marks.of(kind=[1]), 0)
        writer.close(Outcome.FAILED, "stopped")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for descriptor in held:
            os.close(descriptor)

    document, _ = end_of(run_dir)
    assert document["outcome"] == "failed"
    assert "Too many open files" in document["stopped"]
    assert load(run_dir).recordings[0].trace.size.tolist() == [1]
