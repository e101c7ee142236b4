"""Ctrl-C at any moment: the recording ends, holds what torch counts, and the program gets its exception."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import vramscope
from vramscope.capture.undisturbed import (
    is_of_a_signal_handler,
    is_of_the_program,
    undisturbed,
)
from vramscope.loading import load
from vramscope.model.marks import MarkKind

ROOT = Path(__file__).parents[3]
STORM = Path(__file__).parent / "scripts" / "storm.py"
LIMIT_S = 240
INEXACT = {"recording_failed", "interrupted"}


def answers(python, *command):
    """The lines of JSON that a script says within the limit."""
    done = subprocess.run(
        [str(python), *map(str, command)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def storms(python, folder, device):
    """Each storm ends within the limit, swallows no interrupt, and counts as torch does or says that not."""
    wheres = ("inside", "blocks")
    found = answers(python, STORM, folder, device, "3", "0.0037", *wheres)

    for where, said in zip(wheres, found, strict=True):
        assert said["caught"] > 0, where
        assert said["swallowed"] == 0, where
        (recording,) = load(folder / where).recordings
        notes = {note.code for note in recording.notes}
        # At the mark, and not at the end: what an interrupted destructor keeps dies in between.
        (instant,) = recording.marks.rows(recording.marks.kind == MarkKind.MARK).event.tolist()
        counted = int(recording.timeline().requested_bytes[instant])
        assert counted == said["in_use"] or notes & INEXACT, (where, said, notes)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_storm_of_interrupts_on_the_simulated_device(tmp_path):
    storms(sys.executable, tmp_path, "simulated")


@pytest.mark.slow
@pytest.mark.standin
def test_a_storm_of_interrupts_on_cuda(standin, tmp_path):
    storms(standin, tmp_path, "cuda")


EVERYWHERE = Path(__file__).parent / "scripts" / "interrupted_everywhere.py"


def interrupted_everywhere(python, folder, device, *passes):
    """Interrupt one pass at many places; nothing may remain, and the last block is exact."""
    found = answers(python, EVERYWHERE, folder, device, *passes)

    for each, said in zip(passes, found, strict=True):
        what = each.partition(":")[0]
        assert said["wrong"] == {}, what
        (recording,) = load(folder / what).recordings
        assert int(recording.timeline().requested_bytes[-1]) == said["in_use"], what
        codes = {note.code for note in recording.notes}
        assert not codes & (INEXACT | {"shared_history", "history_stopped"}), what


# One process each: the simulated device also records that tensors of one pass die in the next.
@pytest.mark.slow
@pytest.mark.parametrize("each", ["block:1:5", pytest.param("train:1:50", marks=pytest.mark.exhaustive)])
def test_an_interrupt_anywhere_leaves_no_hook_on_the_simulated_device(tmp_path, each):
    interrupted_everywhere(sys.executable, tmp_path, "simulated", each)


@pytest.mark.slow
@pytest.mark.standin
def test_an_interrupt_anywhere_leaves_no_hook_on_cuda(standin, tmp_path):
    interrupted_everywhere(standin, tmp_path, "cuda", "block:1:5", "train:1:50")


def test_a_result_that_only_the_traceback_of_an_interrupt_holds_is_recorded(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGALRM, handler)
    run = vramscope.record(tmp_path / "run", quiet=True)
    try:
        with run:
            walker = type(run._pipeline.capture._walker)
            monkeypatch.setattr(walker, "path", lambda *_: signal.raise_signal(signal.SIGALRM))
            with pytest.raises(TimeoutError) as raised:
                torch.ones(1000)
            monkeypatch.undo()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert raised.tb is not None
    (recording,) = load(tmp_path / "run").recordings
    requested = recording.timeline().requested_bytes
    assert int(requested[-1]) - int(requested[0]) == 4000


def test_work_is_done_whole_and_the_interrupt_comes_after_it():
    done = []
    before = signal.signal(signal.SIGALRM, handler)

    def work():
        signal.raise_signal(signal.SIGALRM)
        done.append(1)

    def run():
        undisturbed(work)
        for _ in range(1000):  # Python may handle the signal of another thread some instructions later
            pass

    try:
        with pytest.raises(TimeoutError):  # no KeyboardInterrupt: out of place that would end all tests
            run()
    finally:
        signal.signal(signal.SIGALRM, before)

    assert done == [1]


def test_an_error_of_the_work_comes_out():
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: [][:] or 1 / 0)


def handler(*_):
    raise TimeoutError


class Handler:
    def method(self, *_):
        raise TimeoutError

    def __call__(self, *_):
        raise TimeoutError


@pytest.mark.parametrize(
    "given",
    [handler, Handler().method, Handler(), functools.partial(handler)],
    ids=["function", "method", "object", "partial"],
)
def test_an_exception_of_a_signal_handler_is_the_programs(given):
    before = signal.signal(signal.SIGALRM, given)
    try:
        with pytest.raises(TimeoutError) as raised:
            signal.raise_signal(signal.SIGALRM)
        assert is_of_a_signal_handler(raised.value)
        assert not is_of_a_signal_handler(ValueError())
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_timeout_of_the_program_within_our_hook_reaches_it(tmp_path, monkeypatch):
    """An alarm that comes while our code runs is no failure of ours."""
    before = signal.signal(signal.SIGALRM, handler)
    run = vramscope.record(tmp_path / "run", quiet=True)
    try:
        with run:
            model = nn.Linear(2, 2)
            monkeypatch.setattr(
                type(run._pipeline.capture._labeler), "module", lambda *_: signal.raise_signal(signal.SIGALRM)
            )
            with pytest.raises(TimeoutError):
                model(torch.ones(1, 2))
            monkeypatch.undo()
            model(torch.ones(1, 2))
    finally:
        signal.signal(signal.SIGALRM, before)

    (recording,) = load(tmp_path / "run").recordings
    assert "recording_failed" not in {note.code for note in recording.notes}


def test_an_error_without_a_traceback_is_judged_by_its_class():
    assert not is_of_the_program(ValueError())
    assert is_of_the_program(SystemExit(3))  # nothing says that our code met it in the program's
    assert is_of_the_program(KeyboardInterrupt())
