"""A write that stalls holds no thread of the program, and what is missed meanwhile is said."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vramscope
from vramscope.model.codes import NoteCode
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action
from vramscope.recorder.blocks import runs
from vramscope.stalls import AtDisk, Patience, is_stalled

torch = pytest.importorskip("torch")

LONGEST_S = 120


class Disk:
    """Takes writes only while it is awake."""

    def __init__(self, directory: Path, write: Callable[[int, bytes], int]) -> None:
        self._directory = str(directory)
        self._write = write
        self.is_awake = threading.Event()
        self.is_awake.set()
        self.is_asked = threading.Event()

    def write(self, descriptor: int, data: bytes) -> int:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not self.is_awake.is_set() and path.startswith(self._directory):
            self.is_asked.set()
            assert self.is_awake.wait(LONGEST_S)
        return self._write(descriptor, data)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk(tmp_path, os.write)
    monkeypatch.setattr(os, "write", found.write)
    yield found
    found.is_awake.set()


def trained(
    n_steps: int, block: Callable[[], object], at: Callable[[int], None] = lambda _: None
) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(n_steps):
        at(step)
        with block():
            loss = model(torch.randn(4, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def a_stall_from_step_3_to_8(disk: Disk) -> Callable[[int], None]:
    def at(step: int) -> None:
        if step == 3:
            disk.is_awake.clear()
        if step == 8:  # which a held program would never reach
            assert disk.is_asked.is_set()
            disk.is_awake.set()

    return at


@pytest.mark.parametrize("is_on_main_thread", [True, False])
def test_a_loop_with_a_block_per_step_goes_on_while_a_write_stalls(
    tmp_path: Path, disk: Disk, is_on_main_thread: bool
) -> None:
    recorder = vramscope.record(tmp_path / "run", device="simulated", quiet=True)
    losses: list[float] = []

    def train() -> None:
        losses.extend(trained(12, lambda: recorder, a_stall_from_step_3_to_8(disk)))

    if is_on_main_thread:
        train()
    else:
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        thread.join(LONGEST_S)
    runs.by_directory[tmp_path / "run"].end()
    run = vramscope.load(tmp_path / "run")
    assert losses == trained(12, torch.enable_grad)
    assert run.outcome == Outcome.FINISHED
    missed = [note.value for note in run.recordings[0].notes if note.code == NoteCode.GAP]
    # One note of steps 3 or 4 to 7, and those until the recorder is awake; a busy disk may stall once more.
    assert max(missed) >= 4
    assert sum(missed) <= 9


def test_a_flush_that_stalls_loses_nothing_of_a_loop_in_one_block(tmp_path: Path, disk: Disk) -> None:
    held = threading.Event()

    def at(step: int) -> None:
        if step == 3:
            disk.is_awake.clear()
            assert disk.is_asked.wait(LONGEST_S)  # the thread that flushes once a second
        if step == 8:
            disk.is_awake.set()
            held.set()

    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        trained(10, torch.enable_grad, at)
    runs.by_directory[tmp_path / "run"].end()
    recording = vramscope.load(tmp_path / "run").recordings[0]
    assert held.is_set()
    assert len(recording.steps) == 10
    assert NoteCode.GAP not in {note.code for note in recording.notes}


def test_what_is_loaded_after_a_block_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True) as recorder:
        trained(3, torch.enable_grad)
        disk.is_awake.clear()
    assert disk.is_asked.is_set()  # the block was left all the same
    threading.Timer(1.0, disk.is_awake.set).start()

    run = recorder.load()

    assert disk.is_awake.is_set()
    assert run.outcome == Outcome.FINISHED
    assert len(run.recordings[0].steps) == 3


def test_blocks_that_are_entered_while_a_flush_stalls_are_recorded(tmp_path: Path, disk: Disk) -> None:
    recorder = vramscope.record(tmp_path / "run", device="simulated", quiet=True)
    with recorder:
        trained(3, torch.enable_grad)
        disk.is_awake.clear()
        assert disk.is_asked.wait(LONGEST_S)
    for _ in range(3):
        with recorder:
            trained(1, torch.enable_grad)
    recorder.__enter__()
    disk.is_awake.set()
    trained(2, torch.enable_grad)
    recorder.__exit__(None, None, None)
    runs.by_directory[tmp_path / "run"].end()
    recording = vramscope.load(tmp_path / "run").recordings[0]
    assert len(recording.steps) == 8
    assert NoteCode.GAP not in {note.code for note in recording.notes}


def test_what_a_stalled_write_leaves_waiting_is_worked_off_in_small_parts(tmp_path: Path, disk: Disk) -> None:
    """On the thread that allocates: 143,000 events at once held it for 2.6 s."""
    longest = 0
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        trained(3, torch.enable_grad)
        disk.is_awake.clear()
        assert disk.is_asked.wait(LONGEST_S)
        waiting = runs.by_directory[tmp_path / "run"].pipeline.capture._queue
        for _ in range(20_000):
            torch.ones(1)
            longest = max(longest, len(waiting))
        disk.is_awake.set()

    assert 7 * 5_000 < longest < 7 * 15_000
    trace = vramscope.load(tmp_path / "run").recordings[0].trace
    assert (trace.action == Action.ALLOC).sum() > 20_000


def test_an_operation_stalls_once_it_was_looked_at_often_enough() -> None:
    patience = Patience()
    with AtDisk():
        assert [patience.is_over() for _ in range(3)] == [False, False, True]
        assert is_stalled()
        assert Patience().is_over()  # who comes later does not wait again
    assert not is_stalled()
    with AtDisk():
        assert not patience.is_over()
