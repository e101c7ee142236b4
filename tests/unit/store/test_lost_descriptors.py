"""A program that closes every descriptor keeps its own files as they are, and the trace goes on."""

import os

import pytest

import vramscope
from vramscope.loading import load
from vramscope.store.write.append_file import AppendFile

torch = pytest.importorskip("torch")


def closed_and_reused(file: AppendFile, folder):
    """The program closes the descriptor and opens a file of its own, which gets the same number."""
    os.close(file._fd)
    theirs = os.open(folder / "theirs", os.O_RDWR | os.O_CREAT)
    assert theirs == file._fd
    os.write(theirs, b"mine")
    return theirs


def test_a_file_of_the_program_is_never_written_to(tmp_path):
    file = AppendFile(tmp_path / "ours")
    file.append(b"one")
    theirs = closed_and_reused(file, tmp_path)
    file.append(b"two")
    os.close(theirs)

    assert (tmp_path / "theirs").read_bytes() == b"mine"
    assert (tmp_path / "ours").read_bytes() == b"onetwo"


def test_a_file_of_the_program_is_not_closed(tmp_path):
    file = AppendFile(tmp_path / "ours")
    theirs = closed_and_reused(file, tmp_path)
    file.close(durable=True)
    os.write(theirs, b" still")
    os.close(theirs)

    assert (tmp_path / "theirs").read_bytes() == b"mine still"


def test_a_file_that_is_gone_too_is_an_error(tmp_path):
    file = AppendFile(tmp_path / "ours")
    theirs = closed_and_reused(file, tmp_path)
    (tmp_path / "ours").unlink()

    with pytest.raises(OSError, match="gone"):
        file.append(b"two")
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == b"mine"


def test_recording_goes_on_after_closerange(tmp_path, forked):
    def program():
        with vramscope.record(tmp_path / "run", quiet=True) as recorder:
            kept = [torch.ones(256)]
            recorder._pipeline.flush()
            os.closerange(3, 256)
            files = [open(tmp_path / f"file{i}", "wb", buffering=0) for i in range(12)]  # noqa: SIM115, PTH123
            for file in files:
                file.write(b"the program's own text")
            kept += [torch.ones(256) for _ in range(100)]
            recorder._pipeline.flush()

    forked(program)

    (recording,) = load(tmp_path / "run").recordings
    assert {(tmp_path / f"file{i}").read_bytes() for i in range(12)} == {b"the program's own text"}
    assert (recording.trace.size == 1024).sum() >= 101
    assert recording.notes == ()


@pytest.fixture
def forked():
    """``forked(function)`` runs it in a child, so that pytest keeps its own descriptors."""

    def run(function):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                function()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0

    return run
