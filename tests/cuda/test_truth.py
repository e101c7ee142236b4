"""Twelve trainings on torch's genuine allocator: the recordings, compared with what torch reported meanwhile.

The truth is torch's alone: ``memory_stats()`` in the middle of the work, ``max_memory_allocated()`` of a run
that resets it and does not know us, and snapshots. A moment of the workload is found in the trace by the
allocator's own counts of events, which know neither our clocks nor our marks.
"""

from functools import partial

import numpy as np
import pytest
from catalogue import GROUP_OF
from layouts import expected, layout
from moments import QUANTITIES, counted, moments, phases_of, rows_of

from vramscope.allocator.state_index import StateIndex
from vramscope.model.trace import Action

# One worker runs the workloads once; all tests look at the same runs.
pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-workloads")]

each_workload = pytest.mark.parametrize("name", GROUP_OF)


@pytest.fixture
def truth(name, truth_of):
    return truth_of(name)


@each_workload
def test_every_event_that_the_allocator_counted_is_in_the_trace(truth):
    said = np.array(truth.recorded["last"]["counts"]) - truth.recorded["first"]["counts"]
    seen = counted(truth.recording.trace)[-1]

    assert seen[:3].tolist() == said[:3].tolist()
    if seen[3:].any():
        assert seen[3:].tolist() == said[3:].tolist()


@each_workload
def test_the_four_quantities_equal_memory_stats_wherever_it_was_asked(truth):
    rows, wrong = rows_of(truth.recording), []
    for point, found in moments(truth.recording, truth.recorded, truth.recorded["points"]):
        if point["bytes"] not in rows[found].tolist():
            wrong.append((point["where"], point["counts"], found, point["bytes"], rows[found].tolist()))

    assert not wrong, f"{len(wrong)} of {len(truth.recorded['points'])}: {wrong[:3]}"
    assert len(truth.recorded["points"]) >= 200


@each_workload
def test_torch_was_asked_on_the_thread_of_autograd_too(truth):
    on_main = [point["on_main_thread"] for point in truth.recorded["points"]]

    assert min(on_main.count(True), on_main.count(False)) >= 10


@each_workload
def test_the_peak_of_every_step_is_max_memory_allocated_of_a_run_that_resets_it(truth):
    found = truth.recording.step_peaks().per_step

    assert found.allocated_bytes.tolist() == truth.plain["steps"]


@each_workload
def test_the_peak_of_every_phase_is_max_memory_allocated_of_a_run_that_resets_it(truth):
    assert phases_of(truth.recording) == truth.plain["phases"]


@each_workload
def test_the_peak_of_the_recording_is_at_most_what_torch_saw_and_its_last_step_is(truth):
    totals = truth.recording.timeline()

    assert int(totals.allocated_bytes.max()) <= truth.plain["greatest"][-1]
    assert int(totals.allocated_bytes.max()) >= max(truth.plain["steps"])


@each_workload
def test_segments_and_blocks_equal_a_snapshot_taken_there(truth):
    recording = truth.recording
    index = StateIndex(recording.trace, recording.initial)
    snapshots = moments(truth.recording, truth.recorded, truth.recorded["snapshots"])

    for said, found in snapshots:
        states = [layout(index.at(k), recording.pools) for k in found]
        assert expected(said) in states
    assert snapshots


@each_workload
def test_training_is_the_same_with_us(truth):
    plain, recorded = (partial(dict.get, run) for run in (truth.plain, truth.recorded))
    assert recorded("losses") == plain("losses")
    assert recorded("random_states") == plain("random_states")
    assert recorded("pointers") == plain("pointers")
    assert recorded("points") == plain("points")


@each_workload
def test_the_peak_that_the_user_sees_is_the_same_with_us(truth):
    assert truth.recorded["greatest"] == truth.plain["greatest"]


def test_under_pressure_the_cache_was_given_back_and_at_last_memory_was_out(truth_of):
    truth = truth_of("pressure")

    assert truth.recorded["retries"] >= 5
    assert (truth.recording.trace.action == Action.OOM).sum() == truth.recorded["ooms"] == 1


def test_blocks_waited_for_other_streams(truth_of):
    totals = truth_of("streams").recording.timeline()

    assert int((totals.active_bytes - totals.allocated_bytes).max()) > 1 << 20


def test_what_was_there_before_the_recording_is_its_initial_state(truth_of):
    truth = truth_of("late")
    sizes = truth.recording.initial.segments.size

    assert int(sizes.sum()) == truth.recorded["first"]["bytes"][QUANTITIES.index("reserved")] > 0
