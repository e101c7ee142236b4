"""The peak is the maximum of each quantity by itself, and is given with its step and phase."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.peak import findings, peak
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.past import Past, StretchPeaks, SummarizedSteps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=120)


def test_each_quantity_has_its_own_peak(recording):
    found = peak(recording((A, 1, 512), (R, 1, 512), (A, 2, 400), (A, 3, 100), (C, 1, 512)))

    assert (found.allocated.n_bytes, found.allocated.instant) == (1024, 4)
    assert (found.active.n_bytes, found.active.instant) == (1536, 4)
    assert (found.requested.n_bytes, found.requested.instant, found.requested.time_ns) == (1012, 4, 4000)


def test_the_peak_names_its_step_and_innermost_phase(recording):
    steps = Steps.of(index=[0, 1], start_event=[0, 2], end_event=[2, 4])
    phases = Phases.of(
        phase=[Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE],
        depth=[0, 0, 1],
        start_event=[0, 2, 2],
        end_event=[2, 4, 3],
    )
    history = recording((A, 1, 1), (R, 1, 1), (A, 2, 5000), (R, 2, 5000), steps=steps, phases=phases)

    found = peak(history)

    assert (found.allocated.step, found.allocated.phase) == (1, Phase.RECOMPUTE)
    assert [finding.claim for finding in findings(found)] == [
        "peak 5.00 KiB allocated at step 1 in recompute"
    ]


@pytest.mark.parametrize(("summarized", "highest"), [(9000, (9000, 0)), (2000, (8000, 2))])
def test_of_a_run_that_outgrew_its_cap_the_oldest_steps_count_too(recording, summarized, highest):
    past = Past(
        n_events=30,
        steps=Steps.of(index=[0, 1, 2], start_event=[0, 10, 20], end_event=[10, 20, 30]),
        summarized=SummarizedSteps.of(start_event=[0, 10], end_event=[10, 20], allocated=[summarized, 1000]),
        peaks=StretchPeaks.of(event=[20, 25], allocated=[7000, 8000]),
    )

    found = peak(recording((A, 1, 512), past=past))

    assert (found.highest("allocated").n_bytes, found.highest("allocated").step) == highest
    assert found.highest("requested").n_bytes == 512


def test_a_peak_before_the_first_event_is_one(play):
    played = play([(0, 1), (0, 999)], 2)

    found = peak(played.recording)

    assert (found.allocated.n_bytes, found.allocated.instant, found.allocated.step) == (1024, 0, None)


def test_nothing_has_no_peak_worth_a_word():
    assert findings(peak(Recording())) == []


@given(OPS, st.integers(0, 40))
def test_the_peaks_are_the_highest_of_the_books(play, ops, n_before):
    played = play(ops, n_before)
    found = peak(played.recording)

    highs = (found.requested, found.allocated, found.active, found.reserved)
    assert tuple(high.n_bytes for high in highs) == tuple(map(max, zip(*played.totals, strict=True)))
