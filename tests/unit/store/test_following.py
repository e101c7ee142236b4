"""A reader that follows another process sees whole batches only, and all of them in the end."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from vramscope.model.device import Device
from vramscope.model.marks import Marks, Note
from vramscope.model.recording import Outcome, Run
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.trace import Trace
from vramscope.store.framing import StreamFile
from vramscope.store.read.reader import Reader
from vramscope.store.write.writer import Writer

# Appends batches until asked to stop; prints the number of each one when ``append`` has returned for it.
WRITING = """
import os, socket, sys, time
from pathlib import Path
import numpy as np
from vramscope.model.device import Device, Process
from vramscope.model.recording import Outcome
from vramscope.model.trace import Trace
from vramscope.store.write.writer import Writer

path, pause_s, n_batches = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
process = Process(pid=os.getpid(), host=socket.gethostname())
writer = Writer(path, source="simulated", process=process, devices=[Device()], started_ns=time.time_ns())
for batch in range(n_batches):
    numbers = np.arange(batch * 100, batch * 100 + 100)
    writer.stacks([(0, f"f{batch}", "x.py", batch)])
    times = np.full(100, time.time_ns())
    writer.append(Trace.of(size=numbers, time_ns=times, stack_id=np.full(100, batch + 1)), 0)
    print(batch, times[0], flush=True)
    time.sleep(pause_s)
writer.close(Outcome.FINISHED)
"""


@pytest.fixture
def writing(started: Callable[..., Any]) -> Callable[..., Any]:
    """``with writing(path, pause_s=…, n_batches=…):`` another process that writes."""
    return lambda path, pause_s, n_batches: started([sys.executable, "-c", WRITING, path, pause_s, n_batches])


def events(run: Run) -> int:
    return len(run.recordings[0].trace)


def assert_whole_batches(run: Run) -> None:
    """Every batch is there whole, in order, with its stack."""
    trace = run.recordings[0].trace
    assert len(trace) % 100 == 0
    np.testing.assert_array_equal(trace.size, np.arange(len(trace)))
    np.testing.assert_array_equal(trace.stack_id, np.arange(len(trace)) // 100 + 1)


def test_a_follower_sees_whole_batches_while_another_process_writes(run_dir: Path, writing: Any) -> None:
    seen = set()
    with writing(run_dir, pause_s=0.005, n_batches=400) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = Reader(run_dir)
        while reader.run.outcome is Outcome.RUNNING:
            reader.refresh()
            assert_whole_batches(reader.run)
            seen.add(events(reader.run))

    assert reader.run.outcome is Outcome.FINISHED
    assert events(reader.run) == 40_000
    assert len(seen) > 5
    assert reader.run.recordings[0].notes == ()


def test_what_append_returned_for_survives_sigkill(run_dir: Path, writing: Any) -> None:
    with writing(run_dir, pause_s=0.05, n_batches=10_000) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(6)]
        os.kill(process.pid, signal.SIGKILL)
        said += process.stdout.readlines()
        last_batch, last_ns = map(int, said[-1].split())
    run = Reader(run_dir).run

    assert run.outcome is Outcome.DIED
    assert_whole_batches(run)
    assert events(run) >= (last_batch + 1) * 100
    assert run.ended_ns >= last_ns
    (note,) = run.recordings[0].notes
    assert note.code == "died"
    assert time.strftime("until %Y-%m-%d %H:%M", time.gmtime(run.ended_ns // 10**9)) in note.text


def test_a_follower_notices_that_the_process_died(run_dir: Path, writing: Any) -> None:
    with writing(run_dir, pause_s=60, n_batches=2) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = Reader(run_dir)
        before = reader.run.outcome
        process.kill()
        process.wait()

        assert reader.refresh()
        assert (before, reader.run.outcome) == (Outcome.RUNNING, Outcome.DIED)


def test_a_refresh_without_news_returns_the_same_run(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=[1]), 0)
    reader = Reader(run_dir)
    run = reader.run

    assert not reader.refresh()
    assert reader.run is run


FIRSTS: dict[str, Callable[[Writer], None]] = {
    "events": lambda writer: writer.append(Trace.of(size=[1]), 0),
    "marks": lambda writer: writer.append(Marks.of(kind=[5]), 0),
    "stacks": lambda writer: writer.stacks([(0, "f", "x.py", 1)]),
    "notes": lambda writer: writer.note(Note("gap", "x")),
    "pools": lambda writer: writer.pools([(0, 0)], 0),
    "state": lambda writer: writer.state(
        Snapshot(0, 1, Segments.of(size=[1]), Blocks.of(size=[1])), 0, reported=False
    ),
    "another device": lambda writer: writer.append(Trace.of(size=[1]), 3),
    "end": lambda writer: writer.close(Outcome.FINISHED),
}


@pytest.mark.parametrize("what", FIRSTS)
def test_a_refresh_notices_anything_new(run_dir: Path, new_writer: Callable[..., Writer], what: str) -> None:
    writer = new_writer()
    reader = Reader(run_dir)
    before = reader.run
    FIRSTS[what](writer)

    assert reader.refresh()
    assert reader.run is not before
    assert not reader.refresh()


def test_a_refresh_finds_ranks_that_start_later(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    new_writer(rank=1, world_size=2)
    reader = Reader(run_dir)
    new_writer(rank=0, world_size=2)

    assert reader.refresh()
    assert sorted(reader.run.ranks) == [0, 1]
    assert reader.run.notes == ()


def test_what_was_handed_out_does_not_change_when_more_comes(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer()
    reader, runs = Reader(run_dir), []
    for batch in range(20):
        writer.append(Trace.of(size=np.arange(batch * 10, batch * 10 + 10)), 0)
        reader.refresh()
        runs.append(reader.run)

    assert [run.recordings[0].trace.size.tolist() for run in runs] == [
        list(range(n * 10 + 10)) for n in range(20)
    ]


def test_a_refresh_reads_only_what_is_new(run_dir: Path, new_writer: Callable[..., Writer]) -> None:
    writer = new_writer()
    writer.append(Trace.of(size=range(100_000)), 0)
    reader = Reader(run_dir)
    path = run_dir / "rank0" / "events-0.arrows"
    old = path.stat().st_size
    with path.open("r+b") as file:  # whoever read these bytes again would see the damage
        file.write(b"\0" * old)
    writer.append(Trace.of(size=[100_000]), 0)
    reader.refresh()

    assert events(reader.run) == 100_001
    assert reader.run.recordings[0].notes == ()


def test_a_file_that_shrinks_is_reported_and_what_was_read_is_kept(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    new_writer().append(Trace.of(size=range(100)), 0)
    reader = Reader(run_dir)
    (run_dir / "rank0" / "events-0.arrows").write_bytes(b"")

    assert reader.refresh()
    assert not reader.refresh()
    assert events(reader.run) == 100
    assert [note.code for note in reader.run.recordings[0].notes] == ["damaged"]


def test_threads_that_refresh_together_take_each_row_once(
    run_dir: Path, new_writer: Callable[..., Writer]
) -> None:
    writer = new_writer(devices=[Device()])
    reader = Reader(run_dir)
    threads = [Thread(target=lambda: [reader.refresh() for _ in range(200)], daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for batch in range(50):
        writer.append(Trace.of(size=[batch]), 0)
    for thread in threads:
        thread.join()
    reader.refresh()

    assert reader.run.recordings[0].trace.size.tolist() == list(range(50))


def test_what_rows_refer_to_is_read_after_them(
    run_dir: Path, new_writer: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer writes them first, so a reader that reads them last finds every one."""
    writer = new_writer()
    size, read = StreamFile.size, []

    def write_behind_the_reader(file: StreamFile) -> int:
        found = size(file)
        if file.path.name not in read:
            read.append(file.path.name)
            numbers = [len(read)]
            writer.stacks([(0, f"f{len(read)}", "x.py", 1)])
            writer.pools([(0, n) for n in range(len(read) + 1)], 0)
            writer.append(Trace.of(size=numbers, stack_id=numbers, pool=numbers), 0)
        return found

    monkeypatch.setattr(StreamFile, "size", write_behind_the_reader)
    (recording,) = Reader(run_dir).run.recordings

    assert len(recording.trace) > 0
    assert recording.trace.stack_id.tolist() == recording.trace.size.tolist()
    assert recording.trace.pool.tolist() == recording.trace.size.tolist()
    assert recording.notes == ()
