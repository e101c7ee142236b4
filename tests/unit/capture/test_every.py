"""record(every=N) on the simulated device, held against a recording of every event."""

import gc
import itertools
import random
import re

import numpy as np
import pytest
import torch

import vramscope
from vramscope.analysis.fit import fit
from vramscope.analysis.fit.answer import FitVerdict, Target
from vramscope.analysis.leaks.all_steps import levels_by_counters
from vramscope.analysis.peak import findings
from vramscope.capture.hooks.open_phases import Listener
from vramscope.capture.hooks.stretches import Stretches
from vramscope.errors import UsageError
from vramscope.model.counters import Counters
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.trace import Action
from vramscope.steps.unrecorded import unrecorded
from vramscope.store.retention.carry_over import downsample_counters
from vramscope.units import format_bytes


def recorded(path, n_steps=40, batch_of=lambda _: 32, after_step=lambda _: None, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    with vramscope.record(path, device="simulated", quiet=True, **options) as recorder:
        for number in range(n_steps):
            loss = model(torch.randn(batch_of(number), 64)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            after_step(recorder)
    return vramscope.load(path).recordings[0], losses


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    while gc.collect():  # what earlier tests left in cycles would die in the middle of one of the two
        pass
    home = tmp_path_factory.mktemp("every")

    def batch_of(number):
        return 32 * (1 + number * 7 % 11)

    return [recorded(home / name, batch_of=batch_of, **options)
            for name, options in (("some", {"every": 10}), ("all", {}))]  # fmt: skip


def test_peaks_of_every_step_are_those_of_all_events(pair):
    (some, _), (whole, _) = pair
    mine, truth = (each.step_peaks().per_step for each in (some, whole))

    for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
        assert getattr(mine, name).tolist() == getattr(truth, name).tolist()
    for name in ("requested", "allocated", "active", "reserved"):
        assert some.peak().highest(name).n_bytes == whole.peak().highest(name).n_bytes
    assert len(some.trace) < len(whole.trace) / 2


def test_fit_decides_by_the_peak_of_all_steps(pair):
    (some, _), (whole, _) = pair
    most_bytes, found = whole.peak().highest("reserved").n_bytes, fit(some)
    enough, little = (Target("", most_bytes + found.outside_bytes + more) for more in (most_bytes // 20, -1))

    assert found.recorded_peak_bytes == found.most_bytes[0] == most_bytes
    assert found.recorded_verdict(enough) is FitVerdict.FITS
    assert found.recorded_verdict(little) is not FitVerdict.FITS


def test_steps_with_events_have_them_all(pair):
    (some, _), (whole, _) = pair

    for number in (0, 1, 10, 20, 30):
        mine, truth = (
            each.trace.rows(slice(each.steps.start_event[number], each.steps.end_event[number]))
            for each in (some, whole)
        )
        assert mine.size.tolist() == truth.size.tolist(), number
        assert mine.address.tolist() == truth.address.tolist(), number


def test_losses_are_bit_identical(pair):
    (_, mine), (_, truth) = pair

    assert mine == truth


@pytest.mark.usefixtures("own_tensors_only")
def test_a_failed_allocation_in_a_step_without_events_has_its_line(tmp_path):
    # What happened so far is worked through after each step, as where steps take long.
    options = {"after_step": lambda recorder: recorder.take_peaks(), "every": 10, "capacity": "8 MiB"}
    found, _ = recorded(tmp_path / "run", 28, lambda n: 1 << 15 if n == 25 else 32, **options)
    failures = found.oom()

    assert len(failures) == 1
    assert found.steps.start_event[25] <= failures.event[0] < found.steps.end_event[25]
    assert "recorded" in functions(found, failures.stack_id[0])
    # From there on events are on, and so are their lines.
    after = found.trace.rows(slice(int(failures.event[0]), int(found.steps.start_event[27])))
    assert all("recorded" in functions(found, each) for each in after.stack_id[after.action == Action.ALLOC])


def functions(found, stack_id):
    return [frame.function for frame in found.stacks.frames(int(stack_id))]


@pytest.mark.usefixtures("own_tensors_only")
def test_a_device_that_was_full_before_the_recording_is_said_to_be(tmp_path):
    """What the process holds at the start counts: then no allocation of the recording fails."""
    kept = torch.zeros(4 << 20)
    found, _ = recorded(tmp_path / "run", 4, capacity="8 MiB")

    assert kept.nbytes > 8 << 20
    assert len(found.oom()) == 0
    assert "the simulated device of 8.00 MiB was full before recording began" in found.notes[0].text


class Source:
    """A source whose peaks are as *steps* say, one after the other, and its levels as *level* says."""

    def __init__(self, *steps, level=lambda _: 0):
        self._steps, self._level, self._n = iter(steps), level, -1

    def rest(self, _note):
        return True

    def go_on(self):
        pass

    def levels(self):
        self._n += 1
        return next(self._steps), self._level(self._n)


def stretches_of(every, source):
    listener = Listener()
    listener.failed = pytest.fail
    return Stretches(every, source, listener, source.levels)


def steps_with_events(source, n_steps, evaluates_after=()):
    """The numbers of the steps that have events with ``auto``, and the evaluations after a step."""
    stretches, found, evaluated = stretches_of("auto", source), [], []
    for number in range(n_steps):
        stretches.before(MarkKind.PHASE_BEGIN, Phase.FORWARD, 0)
        found += [number] * stretches.is_on
        stretches.before(MarkKind.PHASE_END, Phase.OPTIMIZER, 1)
        if number in evaluates_after:
            stretches.before(MarkKind.PHASE_BEGIN, Phase.EVAL, 0)
            evaluated += [number] * stretches.is_on
    return found, evaluated


def test_auto_has_events_after_a_peak_that_is_higher_than_all_before():
    # Step 2 is 1 % above those before, step 5 half, and of step 9 on there is a second device.
    peaks = [{"first": each} for each in (100, 100, 101, 101, 101, 150, 90, 150, 150)]
    source = Source(*peaks, *[{"first": 150, "second": 1}] * 4)

    assert steps_with_events(source, 13) == ([0, 1, 2, 4, 6, 8, 10], [])


def test_auto_has_events_ever_less_often_where_memory_grows():
    found, _ = steps_with_events(Source(*({0: 1000 + 10 * number} for number in range(600))), 600)
    gaps = np.diff([each for each in found if each % 100 and each & (each - 1)])

    assert len(found) < 50
    assert np.median(gaps[-5:]) > 3 * np.median(gaps[:5])


@pytest.mark.parametrize(("distance", "offset", "n_steps"), [(10, 9, 1200), (50, 49, 1200), (7, 3, 300)])
def test_auto_has_the_steps_in_which_memory_rises_where_it_rises_every_so_many(distance, offset, n_steps):
    def level(step):
        return 1000 + (step + distance - offset) // distance

    def is_rise(step):
        return step % distance == offset

    source = Source(*[{0: 1}] * n_steps, level=level)
    found, _ = steps_with_events(source, n_steps)
    plain, _ = steps_with_events(Source(*[{0: 1}] * n_steps), n_steps)

    # Three rises have one distance twice: from there on each step that has events is such a step.
    assert all(map(is_rise, (step for step in found if step > offset + 2 * distance)))
    assert sum(map(is_rise, found)) >= 7
    assert len(found) <= len(plain) + 8


def test_auto_has_few_more_steps_where_memory_rises_at_odd_distances():
    draw = random.Random(5)
    levels = list(itertools.accumulate(draw.random() < 0.3 for _ in range(1200)))
    found, _ = steps_with_events(Source(*[{0: 1}] * 1200, level=levels.__getitem__), 1200)
    plain, _ = steps_with_events(Source(*[{0: 1}] * 1200), 1200)

    assert len(found) <= len(plain) + 8


def test_auto_goes_on_where_memory_rises_no_more():
    found, _ = steps_with_events(Source(*[{0: 1}] * 600, level=lambda n: min(n // 10, 5)), 600)

    assert [step for step in found if step > 60] == [64, 100, 128, 200, 256, 300, 400, 500, 512]


def test_auto_has_the_first_evaluation_and_the_step_after_it():
    found, evaluated = steps_with_events(Source(*[{0: 1}] * 60), 60, evaluates_after=(20, 40))

    assert found == [0, 1, 2, 4, 8, 16, 21, 32]
    assert evaluated == [20]


@pytest.mark.usefixtures("own_tensors_only")
def test_auto_has_exact_peaks_and_the_lines_after_a_new_one(tmp_path):
    def batch_of(number):
        return 4096 if number == 10 else 32

    (auto, mine), (whole, truth) = (
        recorded(tmp_path / str(every), 15, batch_of, every=every) for every in ("auto", 1)
    )
    bare = unrecorded(auto).overlap(auto.steps.start_ns, auto.steps.end_ns)

    assert mine == truth
    assert auto.steps.index[~bare].tolist() == [0, 1, 2, 4, 8, 11]
    for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"):
        found, wanted = (getattr(each.step_peaks().per_step, name).tolist() for each in (auto, whole))
        assert found == wanted


class KeepsEachTenth:
    """Keeps 256 KiB after each tenth step."""

    def __init__(self):
        self.n_steps, self.kept = 0, []

    def __call__(self, _recorder):
        self.n_steps += 1
        if self.n_steps % 10 == 9:
            self.kept.append(torch.empty(64 << 10))


@pytest.mark.usefixtures("own_tensors_only")
def test_auto_has_the_line_of_a_leak_in_each_tenth_step(tmp_path):
    found, _ = recorded(tmp_path / "run", 140, after_step=KeepsEachTenth(), every="auto")
    (leak,) = found.leaks().leaks

    assert leak.lines[0].frame.function == "__call__"
    assert leak.bytes_per_step == pytest.approx((256 << 10) / 10, rel=0.1)


@pytest.mark.usefixtures("own_tensors_only")
def test_growth_between_the_steps_with_events_is_said_with_its_least_rate(tmp_path):
    found, _ = recorded(tmp_path / "run", 95, after_step=KeepsEachTenth(), every=10)
    growth = found.verdicts().growth

    assert not found.leaks().leaks
    assert not growth.is_decided
    assert growth.text.startswith("memory grew by at least 25.6 KiB a step, by a line that is not known: ")


@pytest.mark.usefixtures("own_tensors_only")
def test_a_level_that_does_not_rise_between_steps_is_said_to_be_that(tmp_path):
    found, _ = recorded(tmp_path / "run", 40, every=10)
    growth = found.verdicts().growth
    number, level = levels_by_counters(found)
    at = dict(zip(number.tolist(), level.tolist(), strict=True))
    said = re.match(
        r"allocated memory does not grow: (.+) after step (\d+) and (.*?) ?after step 39; ", growth.text
    )

    assert said is not None, growth.text
    assert said[1] == format_bytes(at[int(said[2])])
    assert (said[3] or said[1]) == format_bytes(at[39])
    assert max(level[len(level) // 2 :]) <= at[int(said[2])]
    assert not growth.is_decided


def test_how_far_a_peak_without_events_is_above_those_with_them_is_said(pair):
    (some, _), (whole, _) = pair
    peaks = whole.step_peaks().per_step.allocated_bytes
    recorded_steps = [0, 1, 10, 20, 30]
    top, highest = int(peaks.argmax()), max(recorded_steps, key=lambda each: peaks[each])
    (claim,) = (finding.claim for finding in findings(some.peak()))

    assert top not in recorded_steps
    assert claim == (
        f"peak {format_bytes(int(peaks[top]))} allocated at step {top}, "
        f"{format_bytes(int(peaks[top] - peaks[highest]))} above step {highest}, the highest with events"
    )
    assert "the highest" not in findings(whole.peak())[0].claim
    for quantity in ("reserved", "allocated"):
        assert some.peak().highest(quantity).step == whole.peak().highest(quantity).step


def test_turns_of_two_optimizers_are_one_step():
    updates, is_on = [], []
    stretches = stretches_of(4, Source())
    for _ in range(9):  # a critic steps twice to each step of the generator
        for optimizer in (1, 1, 2):
            stretches.before(MarkKind.PHASE_BEGIN, Phase.FORWARD, 0)
            is_on.append(stretches.is_on)
            updates.append(optimizer)
            stretches.before(MarkKind.PHASE_END, Phase.OPTIMIZER, optimizer)

    turns = [is_on[at : at + 3] for at in range(3, 27, 3)]
    assert all(len(set(turn)) == 1 for turn in turns)
    assert [turn[0] for turn in turns].count(True) == 2


@pytest.mark.parametrize("every", [0, -1, 1.5, "often", "AUTO", True])
def test_what_is_no_number_of_steps_is_refused(every):
    with pytest.raises(UsageError, match="every: a number of steps from 1 on"):
        vramscope.record(device="simulated", every=every)


def test_counters_have_no_events_to_be_had_in_some_steps():
    with pytest.raises(UsageError, match="leave out every"):
        vramscope.record(mode="counters", every=10)


def test_of_thinned_samples_the_highest_levels_stay():
    highest = np.array([5, 9, -1, 3, 8, 2, 7, 1, 4, 6])
    level = np.array([1, 2, 4, 3, 1, 5, 2, 2, 2, 2])
    thinned = downsample_counters(
        Counters.of(
            time_ns=np.arange(10), reserved_bytes=level, device_used_bytes=np.full(10, -1),
            allocated_highest_bytes=highest, active_highest_bytes=highest,
        )
    )  # fmt: skip

    # Of the pairs (1, 2) and (4, 3) the greater stay; each tells of what was since the one before it.
    assert thinned.time_ns.tolist() == [1, 2, 4, 5, 6, 7, 8, 9]
    assert thinned.allocated_highest_bytes.tolist() == [9, -1, 8, 2, 7, 1, 4, 6]
    assert thinned.active_highest_bytes.tolist() == [9, -1, 8, 2, 7, 1, 4, 6]


def test_a_rank_s_summary_has_the_peak_of_a_step_without_events(pair):
    from vramscope.following.rank_summary import device_summary

    (some, _), (whole, _) = pair
    mine, truth = device_summary(some), device_summary(whole)

    assert {name: place.n_bytes for name, place in mine.peak.items()} == {
        name: place.n_bytes for name, place in truth.peak.items()
    }
    assert mine.steps.allocated.tolist() == truth.steps.allocated.tolist()


def test_figures_that_leave_steps_out_are_not_given(tmp_path):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    figures = []
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True, every=5) as recorder:
        for _ in range(12):
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            figures.append((len(recorder.summaries()), [each.peak_bytes for each in recorder.take_peaks()]))

    assert figures[0][0] == 1
    assert figures[1][1][0]["allocated"] > 0
    assert figures[-1] == (0, [{}])
