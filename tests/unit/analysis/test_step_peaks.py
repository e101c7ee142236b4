"""The peak of an interval is what torch's max_memory_allocated says after a reset at its start."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.step_peaks import step_peaks
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
F, B, O = Phase.FORWARD, Phase.BACKWARD, Phase.OTHER  # noqa: E741


def test_the_level_on_entry_counts(recording):
    history = recording(
        (A, 1, 2048),
        (R, 1, 2048),
        (A, 2, 512),
        steps=Steps.of(index=[0, 1], start_event=[0, 1], end_event=[1, 3]),
    )

    assert step_peaks(history).per_step.allocated_bytes.tolist() == [2048, 2048]


def test_each_quantity_has_its_own_peak(recording):
    history = recording(
        (Action.SEGMENT_ALLOC, 0, 2048), (A, 0, 600), (R, 0, 600), (A, 1024, 512),
        steps=Steps.of(index=[0], start_event=[0], end_event=[4]),
    )  # fmt: skip

    found = step_peaks(history).per_step

    assert (
        found.requested_bytes[0],
        found.allocated_bytes[0],
        found.active_bytes[0],
        found.reserved_bytes[0],
    ) == (
        1112,
        1024,
        1536,
        2048,
    )


def test_phases_of_a_step_that_come_twice_are_one_row(recording):
    phases = Phases.of(phase=[F, B, F], step=[0, 0, 0], start_event=[0, 1, 2], end_event=[1, 2, 4])
    history = recording(
        (A, 1, 512), (R, 1, 512), (A, 2, 512), (A, 3, 512),
        phases=phases, steps=Steps.of(index=[0], start_event=[0], end_event=[4]),
    )  # fmt: skip

    found = step_peaks(history).per_phase

    assert found.phase.tolist() == [F, B]
    assert found.step.tolist() == [0, 0]
    assert found.allocated_bytes.tolist() == [1024, 512]
    assert (found.start_event.tolist(), found.end_event.tolist()) == ([0, 1], [4, 2])


def test_what_a_step_did_outside_of_phases_is_other(recording):
    phases = Phases.of(phase=[F], step=[0], start_event=[1], end_event=[2])
    history = recording(
        (A, 1, 512), (A, 2, 512), (A, 3, 512),
        phases=phases, steps=Steps.of(index=[0], start_event=[0], end_event=[3]),
    )  # fmt: skip

    found = step_peaks(history).per_phase

    assert found.phase.tolist() == [O, F]
    assert found.allocated_bytes.tolist() == [1536, 1024]


def test_nothing_has_no_rows():
    found = step_peaks(Recording())

    assert (len(found.per_step), len(found.per_phase)) == (0, 0)


def test_marks_ahead_of_the_events_are_cut(recording):
    phases = Phases.of(phase=[F], step=[0], start_event=[1], end_event=[9])
    history = recording((A, 1, 512), phases=phases, steps=Steps.of(index=[0], start_event=[0], end_event=[9]))

    found = step_peaks(history)

    assert found.per_step.allocated_bytes.tolist() == [512]
    assert found.per_phase.allocated_bytes.tolist() == [512, 512]


@given(OPS, st.lists(st.integers(0, 60), min_size=2, max_size=6))
def test_steps_are_as_high_as_the_books_say(play, ops, cuts):
    played = play(ops, 10)
    edges = sorted(min(cut, len(played.recording.trace)) for cut in cuts)
    known = Steps.of(index=range(len(edges) - 1), start_event=edges[:-1], end_event=edges[1:])
    history = Recording(trace=played.recording.trace, initial=played.recording.initial, steps=known)

    found = step_peaks(history).per_step

    for row, (start, end) in enumerate(pairwise(edges)):
        most = tuple(map(max, zip(*played.totals[start : end + 1], strict=True)))
        assert (
            found.requested_bytes[row],
            found.allocated_bytes[row],
            found.active_bytes[row],
            found.reserved_bytes[row],
        ) == most
