"""The summary that a recorder writes while it records is the one that a reader of the whole trace makes."""

import signal
from pathlib import Path

import pytest

import vramscope
from vramscope.fleet import known_summary, made_summary
from vramscope.following import summary_writer
from vramscope.following.rank_summary import in_order
from vramscope.following.summary_writer import SummaryPace, SummaryWriter
from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.recording import Outcome
from vramscope.model.snapshot import Snapshot
from vramscope.model.trace import Action, Trace
from vramscope.recorder import Recorder, RecorderOptions
from vramscope.store.sources import read as read_sources
from vramscope.store.summaries import read_summary
from vramscope.store.write.writer import Writer

TRAIN = """
import os, signal, sys, time, torch, vramscope
from pathlib import Path
from vramscope.recorder import RecorderOptions, recorder_of
from vramscope.following.summary_writer import SummaryPace
pace = SummaryPace(*eval(sys.argv[3]))
recorder = recorder_of(RecorderOptions(Path(sys.argv[1]), "auto", None, 64, 2 << 30, pace), quiet=True)
def step():
    loss = net(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
kept = []
def train(each):
    for number in range(int(sys.argv[2])):
        if each:
            with recorder:
                kept.append(step())
        else:
            kept.append(step())
        if "kill" in sys.argv and number == 25:
            for _ in range(1000):  # until there is a summary
                recorder._pipeline.flush()
                if (Path(sys.argv[1]) / "rank0" / "summary.json").exists():
                    break
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.Adam(net.parameters())
if "each" in sys.argv:
    train(each=True)
else:
    with recorder:
        train(each=False)
"""
SMALL_PIECES = (0.0, 100, 120)


@pytest.fixture
def trained(tmp_path: Path, plain_forks):
    """``trained(n_steps, *words, pieces=…)``: the directory of the only rank, and how the process ended."""

    def run(n_steps, *words, pieces=SMALL_PIECES):
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        arguments = (tmp_path / "run", n_steps, repr(pieces), *words)
        ended = plain_forks.run(script, *arguments, cwd=tmp_path, variables={})
        return tmp_path / "run" / "rank0", ended.returncode

    return run


def only(summary):
    """The summary of the only device."""
    (found,) = summary.devices
    return found


@pytest.mark.parametrize("words", [(), ("each",)])
@pytest.mark.parametrize("pieces", [SMALL_PIECES, (60.0, 1 << 14, 5000)])
def test_pieces_give_the_same_summary_as_the_whole(trained, words, pieces, assert_same_device):
    rank, code = trained(60, *words, pieces=pieces)
    stored = read_summary(rank / "summary.json")
    # A block that is entered while the disk stalls, for 0.3 s on a busy machine, is not recorded but counted.
    missed = [note.value for note in only(stored.summary).notes if note.code == NoteCode.GAP]

    assert code == 0
    assert stored.is_final
    assert stored.summary.outcome is Outcome.FINISHED
    assert len(only(stored.summary).steps) + sum(missed) == 60
    assert_same_device(only(stored.summary), only(made_summary(rank)))


def test_the_peak_of_each_step_is_that_of_the_analysis(trained, tmp_path: Path):
    rank, _ = trained(40)
    kept = read_sources(rank / "sources.json")

    # The source lines of the program are in the recording, and whatever started it.
    (script,) = tmp_path.glob("*.py")
    assert str(script) in kept
    assert all(name.endswith(".py") for name in kept)
    assert all(script.read_text().splitlines()[n - 1] == text for n, text in kept[str(script)].lines.items())
    steps = read_summary(rank / "summary.json").summary.devices[0].steps
    (recording,) = vramscope.load(rank).recordings

    assert steps.allocated.tolist() == recording.step_peaks().per_step.allocated_bytes.tolist()
    assert read_summary(rank / "summary.json").summary.devices[0].peak["allocated"].n_bytes == max(
        recording.timeline().allocated_bytes.tolist()
    )


def test_a_killed_process_leaves_a_summary_that_readers_do_not_take_for_whole(trained):
    rank, code = trained(60, "kill")

    assert code == -signal.SIGKILL
    assert not read_summary(rank / "summary.json").is_final
    assert known_summary(rank) is None
    assert made_summary(rank).outcome is Outcome.DIED
    assert known_summary(rank).summary.outcome is Outcome.DIED


def test_a_trace_that_has_grown_needs_another_summary(trained):
    rank, _ = trained(5)
    before = known_summary(rank)
    (rank / "part1").mkdir()
    (rank / "part1" / "events-0.arrows").write_bytes(b"more")

    assert before is not None
    assert known_summary(rank) is None


def test_a_failure_of_the_summary_leaves_the_recording_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(summary_writer, "advanced", lambda *_: 1 / 0)
    options = RecorderOptions(tmp_path / "run", "simulated", None, 64, None, SummaryPace(write_every_s=0.0))
    with Recorder(options, quiet=True) as recorder:
        torch.ones(1000)
        recorder._pipeline.flush()
    run = vramscope.load(tmp_path / "run")

    assert run.outcome is Outcome.FINISHED
    assert not (tmp_path / "run" / "rank0" / "summary.json").exists()
    assert len(run.recordings[0].trace)


def test_the_figures_so_far_say_that_the_recording_failed(tmp_path: Path):
    torch = pytest.importorskip("torch")
    options = RecorderOptions(tmp_path / "run", "simulated", None, 64, None)
    with Recorder(options, quiet=True) as recorder:
        torch.ones(1000)
        recorder._pipeline.flush()
        with pytest.warns(RuntimeWarning, match="stopped recording"):
            recorder._pipeline.fail(OSError("the disk is full"))
        notes = only(recorder._pipeline.summary.current()).notes

    assert [note.code for note in notes].count(NoteCode.RECORDING_FAILED) == 1


def test_blocks_that_a_stalled_disk_took_are_in_the_summary_too(tmp_path: Path):
    torch = pytest.importorskip("torch")
    options = RecorderOptions(tmp_path / "run", "simulated", None, 64, None, SummaryPace(write_every_s=0.0))
    with Recorder(options, quiet=True) as recorder:
        torch.ones(1000)
        recorder._pipeline.miss(2)
    stored = read_summary(tmp_path / "run" / "rank0" / "summary.json")

    assert [note.value for note in only(stored.summary).notes if note.code == NoteCode.GAP] == [2]


def test_samples_may_be_read_before_the_state_at_the_start(tmp_path: Path):
    """A slow start: the driver's memory is asked for before the allocator's state is written."""
    writer = Writer(tmp_path, source="cuda", process=Process(), devices=[Device()], started_ns=1)
    summary = SummaryWriter(writer)
    summary.append(Counters.of(time_ns=[5], device_used_bytes=[1 << 30]), 0)
    early = summary.current()
    summary.state(Snapshot(), 0, reported=False)
    action = Action.ALLOC
    summary.append(Trace.of(action=[action], time_ns=[9], address=[512], size=[700], block_size=[1024]), 0)
    writer.close(Outcome.FINISHED)
    summary.finish(Outcome.FINISHED, "", is_last=True)

    assert early is not None
    assert only(summary.current()).peak["allocated"].n_bytes == 1024
    assert (writer.path / "summary.json").exists()


@pytest.mark.exhaustive
def test_the_figures_of_a_running_recording_are_those_of_a_reader_long_after_its_first_steps_were_settled(
    tmp_path: Path,
):
    torch = pytest.importorskip("torch")
    options = RecorderOptions(tmp_path / "run", "simulated", None, 64, None, SummaryPace(1e6, 1, 24))
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(net.parameters())
    with Recorder(options, quiet=True) as recorder:
        # At 512 steps groups of 2 are made, at 1,024 groups of 4.
        for number in range(1100):
            # The highest peak is that of a step which is settled soon.
            net(torch.ones(4096 if number == 4 else 64 + number, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 8 == 0:
                recorder._pipeline.flush()
    (found,) = recorder.summaries()
    course = recorder._pipeline.summary._courses[0]
    read = only(made_summary(tmp_path / "run" / "rank0"))

    assert len(course._settled) > 30
    assert len(course._marks) < 60
    assert read.peak["allocated"].step == 4
    assert only(found).peak == read.peak
    assert only(found).phases == read.phases
    assert {name: column.tolist() for name, column in only(found).steps.columns()} == {
        name: column.tolist() for name, column in read.steps.columns()
    }


def test_phases_are_in_their_own_order_whichever_was_read_first() -> None:
    assert list(in_order({"loss": 1, "forward": 3, "zero_grad": 2})) == ["forward", "zero_grad", "loss"]
