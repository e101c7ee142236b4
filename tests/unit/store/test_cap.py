"""A trace below a size cap has the same totals, peaks and states as the same run without a cap."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.analysis.lifetimes import ALIVE
from vramscope.cli import main
from vramscope.errors import StoreError, UsageError
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.marks import MarkKind
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Trace
from vramscope.recorder import Recorder, record
from vramscope.store import batches, parts
from vramscope.store import manifest as manifests
from vramscope.store.read.rank import RankReader
from vramscope.store.read.reader import Reader
from vramscope.store.retention.compactor import Compactor
from vramscope.store.write.writer import Writer

sys.path.append(str(Path(__file__).parent / "scripts"))

from endless_program import Program, phases_of, steps_of

CAP = 150_000
N_SAMPLES = 20
"""So many at least are never thinned."""


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """Waiting takes most of the time, and matters only after a power failure."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        yield


def writer_into(directory, *, max_bytes=None, rank=0):
    process = Process(rank=rank, world_size=1)
    return Writer(
        directory, source="cuda", process=process, devices=[Device()], started_ns=1, max_bytes=max_bytes
    )


def recording_of(directory):
    return Reader(directory).run.recordings[0]


def size_of(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def same_state(found, expected):
    for name in ("segments", "blocks"):
        for column, values in getattr(expected, name).columns():
            np.testing.assert_array_equal(getattr(getattr(found, name), column), values, column)


def labels_of(recording):
    """What was known of each allocation at last."""
    known, labels = recording.categories(), recording.labels
    names = [labels.names[labels.name[row]] if row >= 0 else "" for row in known.assigned.label.tolist()]
    rows = zip(known.allocations.address.tolist(), known.allocations.free_event.tolist(), names, strict=True)
    return sorted((address, name) for address, end, name in rows if end == ALIVE)


def holders_of(recording):
    """The last path to each block that is live at the end."""
    holders, found = recording.holders, recording.lifetimes()
    first = holders.first_rows().tolist()
    last = {
        int(holders.address[row]): (int(holders.event[row]), holders.holding(row, end))
        for row, end in zip(first, [*first[1:], len(holders)], strict=True)
    }
    live = found.rows(found.free_event == ALIVE)
    rows = zip(live.address.tolist(), live.alloc_event.tolist(), strict=True)
    return {address: last[address][1] for address, born in rows if last.get(address, (-1,))[0] > born}


def check(capped, whole):
    """Every figure of the capped run is that of the whole one."""
    first = capped.past.n_events
    rest = whole.window(start_event=first)
    for column, values in rest.trace.columns():
        np.testing.assert_array_equal(getattr(capped.trace, column), values, column)
    same_state(capped.initial, rest.initial)
    for column, values in rest.timeline().columns():
        np.testing.assert_array_equal(getattr(capped.timeline(), column)[1:], values[1:], column)
    assert steps_of(capped) == steps_of(whole)
    n_summarized = len(capped.past.summarized)
    phases = phases_of(whole)
    assert phases_of(capped) == {key: phases[key] for key in phases if key[0] >= n_summarized}
    assert labels_of(capped) == labels_of(whole)
    assert holders_of(capped) == holders_of(whole)
    samples, kept = whole.counters.time_ns.tolist(), capped.counters.time_ns.tolist()
    assert set(kept) <= set(samples)
    assert kept[-N_SAMPLES:] == samples[-N_SAMPLES:]
    assert marks_of(capped.past.marks) | marks_of(capped.marks) == marks_of(
        whole.marks, capped.past.summarized
    )


def marks_of(marks, summarized=None):
    """Times of those that are kept; of a whole run those that come after what is *summarized*."""
    rows = marks.rows(~np.isin(marks.kind, (MarkKind.MODULE, MarkKind.GC)))
    after = summarized.end_ns[-1] if summarized is not None and len(summarized) else 0
    return set(rows.time_ns[rows.time_ns > after].tolist())


@pytest.mark.exhaustive
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), expandable=st.booleans(), n_steps=st.integers(1, 80))
def test_totals_states_labels_and_peaks_are_those_of_the_same_run_without_a_cap(seed, expandable, n_steps):
    with TemporaryDirectory() as directory:
        home = Path(directory)
        writers = [writer_into(home / "whole"), writer_into(home / "capped", max_bytes=CAP)]
        program = Program(writers, seed, expandable=expandable)
        for n_more in (n_steps, 40, 3):
            program.run(n_more)
            program.tell()
            writers[1].compact()
            check(recording_of(home / "capped"), recording_of(home / "whole"))
            assert size_of(home / "capped") <= CAP
            assert writers[1].written_bytes == size_of(home / "capped")


@pytest.mark.exhaustive
def test_over_a_long_run_the_directory_stays_below_the_cap_and_every_step_keeps_its_peak(
    tmp_path, monkeypatch
):
    # Five steps take it to 98 % of so small a cap. A compaction that a busy machine leaves half done while
    # the sizes are read, with both summaries in the directory, takes it to 103 %.
    monkeypatch.setattr(Compactor, "start_if_full", lambda _: None)
    writers = [writer_into(tmp_path / "whole"), writer_into(tmp_path / "capped", max_bytes=CAP)]
    program, sizes = Program(writers, 4), []
    for _ in range(200):
        program.run(5, tell_every=0)
        program.tell()
        sizes.append(size_of(tmp_path / "capped"))
        writers[1].compact()
    capped, whole = (recording_of(tmp_path / name) for name in ("capped", "whole"))

    check(capped, whole)
    # Five steps more than fit are the slack: they are written before anybody looks.
    assert max(sizes) < CAP < size_of(tmp_path / "whole") / 8
    # The oldest steps have neither events nor marks any more, and still their peaks.
    assert len(capped.past.summarized) > 500
    assert len(capped.past.marks) < len(whole.marks) / 4


@pytest.fixture
def training(started):
    """``with training(directory, max_bytes=…):`` another process that records without an end.

    With *waits_at* it takes no further step after that one, a multiple of 5.
    """

    def begin(directory, *, max_bytes, seed=1, rank=0, waits_at=-1):
        script = Path(__file__).parent / "scripts" / "endless_run.py"
        command = [sys.executable, script, directory, max_bytes, seed, waits_at]
        return started(command, env=os.environ | {"RANK": str(rank)})

    return begin


def read_until(process, n_steps):
    """The last line of the process, once it has come so far: steps and events."""
    said = (0, 0)
    while said[0] < n_steps:
        said = tuple(map(int, process.stdout.readline().split()))
    return said


def is_sound(recording):
    """Nothing is damaged, no step is missing, and the state at the cut leads to peaks that can be."""
    codes = {note.code for note in recording.notes}
    assert codes <= {"thinned", "died", "truncated"}, recording.notes
    numbers = [*recording.past.steps.index.tolist(), *recording.steps.index.tolist()]
    assert numbers == list(range(len(numbers)))
    assert all(min(row) >= 0 for row in steps_of(recording).values())
    totals = recording.timeline()
    assert (totals.active_bytes <= totals.reserved_bytes).all()
    assert (totals.allocated_bytes <= totals.active_bytes).all()


def test_killed_at_any_moment_a_trace_opens_and_is_right(tmp_path, training):
    random, n_thinned = Random(3), 0
    for attempt in range(4):
        home = tmp_path / str(attempt)
        with training(home, max_bytes=CAP) as process:
            read_until(process, 100)
            time.sleep(random.random() / 2)
            process.kill()
            said = [line.split() for line in process.stdout.read().splitlines()]
        recording = recording_of(home)

        is_sound(recording)
        n_events = recording.past.n_events + len(recording.trace)
        assert n_events >= max((int(row[1]) for row in said if len(row) == 2), default=0)
        n_thinned += recording.past.n_events > 0
    assert n_thinned >= 2


def test_a_follower_goes_on_while_the_beginning_is_taken(tmp_path, training):
    with training(tmp_path, max_bytes=CAP) as process:
        read_until(process, 50)
        reader, generations = Reader(tmp_path), set()
        drain = Thread(target=process.stdout.read, daemon=True)
        drain.start()
        while len(generations) < 4:
            reader.refresh()
            recording = reader.run.recordings[0]
            is_sound(recording)
            generations.add(recording.past.n_events)
    follower = recording
    afresh = recording_of(tmp_path)
    assert afresh.past.n_events >= follower.past.n_events > 0


def test_parts_that_are_taken_in_attempt_after_attempt_are_no_damage(tmp_path, monkeypatch):
    writer = writer_into(tmp_path, max_bytes=CAP)
    program, taken = Program([writer], 5), []
    once = RankReader._refresh_once

    def take():
        before = {path.name for path in (tmp_path / "rank0").iterdir()}
        while {path.name for path in (tmp_path / "rank0").iterdir()} >= before:
            program.run(1, tell_every=0)
            program.tell()
            writer.compact()

    def disturbed(reader):
        changed = once(reader)
        if reader.has_devices and len(taken) < 8:
            taken.append(take())
        return changed

    take()
    monkeypatch.setattr(RankReader, "_refresh_once", disturbed)
    is_sound(recording_of(tmp_path))
    assert len(taken) == 8


@pytest.mark.parametrize("moment", ["a summary is written", "the manifest names it", "parts are removed"])
def test_where_taking_fails_halfway_nothing_is_lost_and_it_is_tried_again(tmp_path, monkeypatch, moment):
    writers = [writer_into(tmp_path / "whole"), writer_into(tmp_path / "capped", max_bytes=CAP)]
    program = Program(writers, 5)
    place = {
        "a summary is written": (batches, "compressed"),
        "the manifest names it": (manifests, "write"),
        "parts are removed": (parts, "remove"),
    }[moment]
    failed = Event()

    def fails(*_, **__):
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    # The first manifest of a trace in parts must be written, and what comes then must not be thinned yet.
    while writers[1].written_bytes < CAP * 0.8:
        program.run(1, tell_every=0)
        program.tell()
    with monkeypatch.context() as patched:
        patched.setattr(*place, fails)
        while not failed.is_set():
            program.run(1, tell_every=0)
            program.tell()
            writers[1].compact()
        check(recording_of(tmp_path / "capped"), recording_of(tmp_path / "whole"))
    while recording_of(tmp_path / "capped").past.n_events == 0:
        writers[1].compact()
    check(recording_of(tmp_path / "capped"), recording_of(tmp_path / "whole"))


def test_each_rank_keeps_below_its_own_cap(tmp_path, training):
    for rank in (0, 1):
        # It compacts at that step. Without a pause it would write three times the cap before the next time.
        with training(tmp_path, max_bytes=CAP, seed=rank, rank=rank, waits_at=200) as process:
            read_until(process, 200)
    found = Reader(tmp_path).run.recordings

    assert [recording.process.rank for recording in found] == [0, 1]
    for recording in found:
        is_sound(recording)
        assert recording.past.n_events > 0
        assert size_of(tmp_path / f"rank{recording.process.rank}") <= CAP


def test_events_that_compress_well_fill_a_part_by_their_number(tmp_path):
    writer = writer_into(tmp_path, max_bytes=1 << 30)
    writer.state(Snapshot(0, 0), 0, reported=False)
    n = 100_000
    for first in range(0, 4 * n, n):
        times = np.arange(first, first + n)
        same = {name: np.zeros(n, dtype) for name, dtype in Trace.DTYPES.items() if name != "time_ns"}
        writer.append(Trace(time_ns=times, **same), 0)
    writer.close(Outcome.FINISHED)

    assert size_of(tmp_path / "rank0" / "part1") < (1 << 30) / 64
    assert recording_of(tmp_path).trace.time_ns.tolist() == list(range(4 * n))


def test_a_trace_that_cannot_be_kept_below_its_cap_is_stopped(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    writer = writer_into(tmp_path, max_bytes=CAP)
    monkeypatch.setattr(batches, "compressed", fails)
    program = Program([writer], 1)

    def train():
        while True:
            program.run(1, tell_every=0)
            program.tell()
            writer.compact()

    with pytest.raises(StoreError, match=r"reached 146 KiB, .*could not go: .*Input/output error"):
        train()

    assert size_of(tmp_path) < CAP + 20_000
    is_sound(recording_of(tmp_path))


def test_report_says_what_was_thinned(tmp_path, capsys):
    writers = [writer_into(tmp_path / "whole"), writer_into(tmp_path / "capped", max_bytes=2 * CAP)]
    program = Program(writers, 2)
    program.run(150)
    program.tell()
    writers[1].compact()
    said = {}
    for name in ("whole", "capped"):
        main(["report", str(tmp_path / name), "--json"])
        (said[name],) = json.loads(capsys.readouterr().out)["recordings"]
    main(["report", str(tmp_path / "capped")])
    page = capsys.readouterr().out

    for key in ("peak", "end", "steps"):
        capped = [step | {"has_detail": True} for step in said["capped"]["steps"]]
        assert (said["capped"] | {"steps": capped})[key] == said["whole"][key]
    n_past = sum(not step["has_detail"] for step in said["capped"]["steps"])
    assert f"detail of steps 0 to {n_past - 1}" in page
    assert "was thinned to stay below 293 KiB: peaks per step and phase are exact" in page


def test_samples_from_before_the_cut_belong_to_no_later_instant(tmp_path):
    writer = writer_into(tmp_path, max_bytes=CAP)
    program = Program([writer], 6)
    program.run(100)
    program.tell()
    writer.compact()
    recording = recording_of(tmp_path)
    found = recording.waterfall()
    is_early = recording.counters.time_ns < recording.initial.time_ns

    assert is_early.sum() > 10
    assert (found.instant[np.isin(found.time_ns, recording.counters.time_ns[is_early])] == -1).all()


def test_without_a_cap_reached_a_trace_is_what_it_was(tmp_path):
    writers = [writer_into(tmp_path / "whole"), writer_into(tmp_path / "capped", max_bytes=1 << 30)]
    program = Program(writers, 2)
    program.run(20)
    program.tell()
    whole, capped = (sorted((tmp_path / name / "rank0").iterdir()) for name in ("whole", "capped"))

    assert [path.name for path in whole] == [path.name for path in capped]
    assert [path.read_bytes() for path in whole] == [path.read_bytes() for path in capped]


@pytest.mark.parametrize(
    ("size", "said"), [("1 MiB", "max_size: at least 16.0 MiB"), ("much", "max_size: not a size")]
)
def test_a_cap_that_cannot_be_meant_is_refused(size, said):
    with pytest.raises(UsageError, match=said):
        record("nowhere", max_size=size)


@pytest.mark.parametrize(
    ("said", "meant"), [([], 2 << 30), (["--max-size", "none"], None), (["--max-size", "1GiB"], 1 << 30)]
)
def test_vramscope_run_takes_a_cap(tmp_path, monkeypatch, said, meant):
    asked, begin = [], Recorder.__init__

    def begins(recorder, wanted, **options):
        asked.append(wanted.max_bytes)
        begin(recorder, wanted, **options)

    monkeypatch.setattr(Recorder, "__init__", begins)
    program = tmp_path / "program.py"
    program.write_text("")
    main(["run", "--quiet", "--output", str(tmp_path / str(meant)), *said, str(program)])

    assert asked == [meant]


def test_a_second_device_that_is_used_for_a_while_only_keeps_its_state_and_peaks(tmp_path):
    writers = [writer_into(tmp_path / "whole"), writer_into(tmp_path / "capped", max_bytes=CAP)]
    first = Program(writers, 7)
    first.run(60, tell_every=0)
    first.tell()
    second = Program(writers, 8, device=1)
    second.run(30, tell_every=0.1)
    second.tell()
    for _ in range(60):
        first.run(5, tell_every=0)
        first.tell()
        writers[1].compact()
    found = [Reader(tmp_path / name).run.recordings for name in ("capped", "whole")]

    for capped, whole in zip(*found, strict=True):
        check(capped, whole)
    assert len(found[0][1].trace) == 0
    assert found[0][1].past.n_events == second.n_events


COMPACTIONS = """
import os, sys, time
from pathlib import Path
sys.path.append(sys.argv[2])
from endless_program import Program
from vramscope.model.device import Device, Process
from vramscope.store.write.writer import Writer

writer = Writer(
    Path(sys.argv[1]), source="cuda", process=Process(), devices=[Device()], started_ns=1, max_bytes=150_000
)
program = Program([writer], 1)
program.tell()
n_before = len(os.listdir("/proc/self/task"))
print(n_before)
while writer.manifest.cap is None or writer.manifest.cap.generation < 2:  # the second one reads the first
    program.run(20, tell_every=0)
    program.tell()
    writer.compact()
# A thread that has ended is listed a moment longer; Arrow's threads stay.
end_s = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > n_before and time.monotonic() < end_s:
    time.sleep(0.01)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the threads of a process")
def test_a_compaction_leaves_no_threads_of_arrow_in_the_training(tmp_path):
    scripts = Path(__file__).parent / "scripts"
    command = [sys.executable, "-c", COMPACTIONS, str(tmp_path / "run"), str(scripts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    before, after = done.stdout.split()

    assert after == before


def test_samples_without_events_are_all_kept(tmp_path):
    writer = writer_into(tmp_path, max_bytes=CAP)
    n_samples = 2000
    for first in range(0, n_samples, 10):
        times = np.arange(first, first + 10)
        writer.append(Counters.of(time_ns=times, allocated_bytes=times), 0)
        writer.compact()
    recording = recording_of(tmp_path)

    assert recording.counters.allocated_bytes.tolist() == list(range(n_samples))
    assert size_of(tmp_path) < CAP
    assert recording.past.n_events == 0
