"""What a logger takes while a program runs equals what the report says later, and torch's counters."""

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.following import recent_peaks  # noqa: E402
from vramscope.following.summary_writer import SummaryPace  # noqa: E402
from vramscope.recorder import Recorder, RecorderOptions  # noqa: E402

SIZES = (4, 60, 8, 100, 30, 2, 90, 16, 50, 5, 120, 7)


class Training:
    """A small training whose steps differ in size."""

    def __init__(self) -> None:
        self.net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def step(self, size: int) -> None:
        self.net(torch.randn(16 * size, 256)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def steps_of(recorder) -> list:
    (recording,) = recorder.load().recordings
    return list(recording.summary().steps)


@pytest.mark.usefixtures("own_tensors_only")
@pytest.mark.parametrize("first", [0, 4], ids=["from_the_beginning", "late"])
@pytest.mark.parametrize("many", [1, 1 << 20], ids=["worked_on_at_each_flush", "worked_on_when_taken"])
def test_each_window_has_the_peaks_that_the_report_gives_its_steps(tmp_path, first, many):
    pace = SummaryPace(followed_events=many)
    options = RecorderOptions(tmp_path / "run", "simulated", None, 64, None, pace)
    training, taken = Training(), []
    with Recorder(options, quiet=True) as recorder:
        for number, size in enumerate(SIZES):
            if number == first:
                assert recorder.take_peaks() == ()
            training.step(size)
            recorder.step()
            recorder._pipeline.flush()
            if number >= first and number % 2:
                taken.append(recorder.take_peaks())
    steps = steps_of(recorder)[first:]

    windows = [steps[at : at + 2] for at in range(0, len(steps), 2)]
    assert [peaks.peak_bytes["allocated"] for (peaks,) in taken] == [
        max(step.allocated_bytes for step in window) for window in windows
    ]
    for (peaks,), window in zip(taken, windows, strict=True):
        names = {name for step in window for name in step.phases} - {"other"}
        assert peaks.phases == {name: max(step.phases.get(name, 0) for step in window) for name in names}


@pytest.mark.usefixtures("own_tensors_only")
def test_the_levels_and_the_share_in_free_pieces_are_those_of_the_recording_there(tmp_path):
    training = Training()
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True) as recorder:
        recorder.take_peaks()
        training.step(40)
        (peaks,) = recorder.take_peaks()
        recorder.mark("here")
    (recording,) = recorder.load().recordings
    (here,) = recording.marks.event[recording.marks.names.index("here") == recording.marks.name]
    parts = recording.identity(int(here))

    assert peaks.level_bytes["reserved"] == parts.reserved_bytes
    assert peaks.inactive_split_bytes == parts.inactive_split_bytes > 0
    assert peaks.fragmentation == parts.inactive_split_bytes / parts.reserved_bytes


def test_counters_alone_claim_no_peaks_and_nothing_is_taken_outside_of_a_block(tmp_path):
    recorder = vramscope.record(tmp_path / "run", mode="counters", quiet=True)
    before = recorder.take_peaks()
    with recorder:
        recorder.take_peaks()
        Training().step(2)
        during = recorder.take_peaks()

    assert before == ()
    assert [peaks.peak_bytes for peaks in during] == [{}] * len(during)


@pytest.mark.usefixtures("own_tensors_only")
def test_a_failure_to_follow_is_one_warning_and_the_recording_goes_on(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("broken")

    training = Training()
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True) as recorder:
        recorder.take_peaks()
        monkeypatch.setattr(recent_peaks, "advanced", fail)
        training.step(2)
        with pytest.warns(RuntimeWarning, match="no more peaks to log: ValueError: broken"):
            assert recorder.take_peaks() == ()
        assert recorder.take_peaks() == ()
        recorder.step()

    assert len(steps_of(recorder)) == 1


SCRIPT = """
import sys, vramscope
sizes = eval(sys.argv[2])
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)]).cuda()
optimizer = torch.optim.Adam(net.parameters())
ours, theirs, split = [], [], []
with vramscope.record(sys.argv[1], quiet=True) as recorder:
    recorder.take_peaks()
    for size in sizes:
        torch.cuda.reset_peak_memory_stats()
        net(torch.randn(16 * size, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
        (peaks,) = recorder.take_peaks()
        ours.append([peaks.peak_bytes["allocated"], peaks.peak_bytes["reserved"]])
        stats = torch.cuda.memory_stats()
        split.append([peaks.inactive_split_bytes, stats["inactive_split_bytes.all.current"]])
answer = [ours, theirs, split]
"""


@pytest.mark.standin
def test_each_window_has_the_peaks_that_torch_counts_after_a_reset(run_standin, tmp_path):
    ours, theirs, split = run_standin(SCRIPT, str(tmp_path / "run"), repr(SIZES))

    assert ours == theirs
    assert len({peak for peak, _ in theirs}) > 3
    assert all(mine == counted for mine, counted in split)
