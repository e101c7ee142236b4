"""Ctrl-C at any instruction of an append: every batch is whole or absent, and the next one follows it."""

import errno
import itertools
import os
import sys
from pathlib import Path

import pytest

from vramscope.store.write import append_file
from vramscope.store.write.append_file import AppendFile

OURS = append_file.__file__


class InterruptAt:
    """Raises KeyboardInterrupt before the n-th instruction of the module under test."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame, event, _argument):
        if frame.f_code.co_filename != OURS:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 tells a frame that asks late of no instruction"
)
def test_an_interrupt_at_any_instruction_damages_no_batch(tmp_path: Path) -> None:
    outcomes = []
    for number in itertools.count():
        path = tmp_path / f"{number}"
        file = AppendFile(path)
        file.append(b"first.")
        interrupted = False
        try:
            with InterruptAt(number):
                file.append(b"second.")
        except KeyboardInterrupt:
            interrupted = True
        file.append(b"third, which is longer.")
        content = path.read_bytes()
        outcomes.append(content)

        assert content in (b"first.second.third, which is longer.", b"first.third, which is longer."), number
        assert file.size == len(content), number
        file.close(durable=False)
        if not interrupted:
            break

    # Interrupts before the write and after it both took place, and the last append was not interrupted.
    assert len(outcomes) > 50
    assert {b"second" in each for each in outcomes} == {True, False}
    assert b"second" in outcomes[-1]


@pytest.mark.parametrize("n_interrupts", [1, 2, 5])
def test_a_batch_that_several_interrupts_tore_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_interrupts: int
) -> None:
    file = AppendFile(tmp_path / "ours")
    file.append(b"first.")
    write = os.write
    left = [n_interrupts]

    def torn(descriptor: int, data: memoryview) -> int:
        written = write(descriptor, data[:1])
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        return written

    monkeypatch.setattr(append_file.os, "write", torn)
    with pytest.raises(KeyboardInterrupt):
        file.append(b"second.")
    left[0] = 0
    file.append(b"third.")

    assert (tmp_path / "ours").read_bytes() == b"first.second.third."
    assert file.size == 19


def test_what_a_full_disk_left_is_taken_away_before_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendFile(tmp_path / "ours")
    file.append(b"first.")
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        write(descriptor, data[:3])
        raise OSError(errno.ENOSPC, "no space left")

    def refuses(_descriptor: int, _size: int) -> None:
        raise OSError(errno.EIO, "cannot be cut now")

    with monkeypatch.context() as patched:
        patched.setattr(append_file.os, "write", full)
        patched.setattr(append_file.os, "ftruncate", refuses)
        with pytest.raises(OSError, match="no space left"):
            file.append(b"second.")
    file.append(b"third.")

    assert (tmp_path / "ours").read_bytes() == b"first.third."


def test_a_file_that_another_program_cut_is_an_error_not_a_torn_batch(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "ours")
    file.append(b"first.")
    os.truncate(tmp_path / "ours", 3)

    with pytest.raises(OSError, match="another program changed the file"):
        file.append(b"second.")
    assert (tmp_path / "ours").read_bytes() == b"fir"
