"""Peaks out of samples: exact where torch's own peak proves it, else at least."""

from dataclasses import replace

import numpy as np

from vramscope.analysis.sampled_peaks import sampled_peaks
from vramscope.model.counters import Counters
from vramscope.model.marks import Steps
from vramscope.model.recording import Recording


def recording(allocated, tops, bounds):
    """A sample at each of the times 0, 10, 20 …; steps between *bounds*."""
    counters = Counters.of(
        time_ns=[10 * at for at in range(len(allocated))],
        allocated_bytes=allocated,
        reserved_bytes=[100] * len(allocated),
        allocated_peak_bytes=tops,
        reserved_peak_bytes=[100] * len(allocated),
    )
    starts, ends = zip(*bounds, strict=True)
    steps = Steps.of(index=range(len(bounds)), start_ns=starts, end_ns=ends)
    return Recording(counters=counters, steps=steps)


def test_where_torchs_peak_rose_the_peak_is_exact_though_no_sample_met_it():
    found = sampled_peaks(recording([5, 6, 5, 5, 5], [5, 50, 50, 50, 50], [(0, 20), (20, 40)])).per_step

    assert found.allocated_bytes.tolist() == [50, 5]
    assert found.is_exact.tolist() == [True, False]
    assert found.at_most_bytes.tolist() == [50, 50]


def test_a_sample_that_meets_torchs_peak_is_the_peak():
    found = sampled_peaks(recording([5, 50, 5, 50, 5], [5, 50, 50, 50, 50], [(20, 40)])).per_step

    assert found.allocated_bytes.tolist() == [50]
    assert found.is_exact.tolist() == [True]


def test_once_the_program_resets_torchs_peak_all_is_at_least():
    found = sampled_peaks(recording([5, 6, 5, 5, 5], [5, 50, 50, 8, 8], [(0, 20), (20, 40)]))

    assert found.is_reset
    assert found.per_step.allocated_bytes.tolist() == [50, 5]
    assert found.per_step.is_exact.tolist() == [False, False]
    assert found.per_step.at_most_bytes.tolist() == [-1, -1]


def test_a_step_whose_ends_were_not_sampled_proves_nothing():
    found = sampled_peaks(recording([5, 6, 5, 5], [5, 50, 50, 50], [(5, 25)])).per_step

    assert found.allocated_bytes.tolist() == [6]
    assert found.is_exact.tolist() == [False]


def test_a_step_without_a_sample_is_unknown():
    found = sampled_peaks(recording([5, 6], [5, 6], [(2, 4), (50, 60)])).per_step

    assert found.allocated_bytes.tolist() == [-1, -1]
    assert found.n_samples.tolist() == [0, 0]


def test_the_whole_recording_has_torchs_peak_where_it_rose():
    found = sampled_peaks(recording([5, 6, 5], [5, 50, 50], [(0, 20)]))

    assert (found.allocated_bytes, found.reserved_bytes, found.is_exact) == (50, 100, True)


def test_without_samples_of_torch_nothing_is_claimed():
    found = sampled_peaks(Recording())

    assert (found.allocated_bytes, len(found.per_step)) == (-1, 0)


def test_torchs_own_peaks_of_the_time_since_the_last_cut_are_the_steps():
    found = recording([5, 6, 5, 5, 5, 5], [5, 50, 8, 8, 60, 60], [(10, 30), (30, 40), (0, 30), (40, 50)])
    # Cuts at 10 (its 50 is of the time before it), 30 and 40; the sample at 20 is of the background.
    counters = replace(
        found.counters,
        allocated_highest_bytes=np.array([-1, 50, -1, 7, 60, -1]),
        reserved_highest_bytes=np.array([-1, 100, -1, 110, 100, -1]),
    )
    found = sampled_peaks(replace(found, counters=counters)).per_step

    assert found.allocated_bytes.tolist() == [7, 60, 50, 5]
    assert found.reserved_bytes.tolist() == [110, 100, 110, 100]
    assert found.is_exact.tolist() == [True, True, False, False]
    assert found.at_most_bytes.tolist() == [7, 60, -1, -1]


def test_a_sample_that_a_background_thread_stamped_late_changes_no_peak_between_cuts():
    # Read in the step before, whose 90 bytes it has, and stamped in the middle of this one.
    found = recording([5, 90, 5, 5], [95, 95, 9, 9], [(0, 20), (20, 30)])
    highest = np.array([5, -1, 9, 7])
    counters = replace(found.counters, allocated_highest_bytes=highest, reserved_highest_bytes=highest)
    found = sampled_peaks(replace(found, counters=counters)).per_step

    assert found.allocated_bytes.tolist() == [9, 7]
    assert found.is_exact.all()
