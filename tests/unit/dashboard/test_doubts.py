"""What is missing lies on the axis where it is missing."""

import numpy as np
import pytest
from vramscope.dashboard.figures.doubts import MOST_GAPS, noted
from vramscope.dashboard.figures.drawing.series import EVENTS, TIME, series

from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Marks, Note
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

SECOND = 10**9
MISSING = "7 events are missing here: what happened in all is shown as one moment"


def recording_with(marks: Marks, *notes: Note) -> Recording:
    """Two allocations, then eight seconds without any events that are known, then two more and another."""
    at_s = [11, 12, 20, 20, 21]
    trace = Trace.of(
        action=[Action.ALLOC] * 5, time_ns=[at * SECOND for at in at_s], address=[512 * i for i in range(5)],
        size=[512] * 5, block_size=[512] * 5,
    )  # fmt: skip
    return Recording(trace=trace, marks=marks, notes=tuple(notes))


@pytest.mark.parametrize(("axis", "expected"), [(TIME, (1.0, 9.0, MISSING)), (EVENTS, (2.0, 3.0, MISSING))])
def test_a_gap_reaches_from_the_last_known_instant_to_its_end(
    axis: str, expected: tuple[float, float, str]
) -> None:
    # What was reconstructed of the gap is event 2, so the gap ends at instant 3.
    found = recording_with(Marks.of(kind=[MarkKind.GAP], event=[3], time_ns=[20 * SECOND], value=[7]))

    assert noted(found, series(found, found.timeline(), axis)) == [expected]


@pytest.mark.parametrize(("axis", "ends"), [(TIME, (1.0, 9.0)), (EVENTS, (2.0, 3.0))])
def test_a_stretch_that_every_leaves_out_is_no_level(axis: str, ends: tuple[float, float]) -> None:
    # Off after event 1, on again before event 3: event 2 stands for what happened between.
    marks = Marks.of(
        kind=[MarkKind.EVENTS] * 2, event=[2, 3], time_ns=[12 * SECOND, 20 * SECOND], value=[0, 1]
    )
    found = recording_with(marks)
    ((start, end, text),) = noted(found, series(found, found.timeline(), axis))

    assert (start, end) == ends
    assert text.startswith("no events were recorded here")


def test_moments_are_at_the_start_and_at_the_end() -> None:
    late, cut = (
        Note(NoteCode.STARTS_LATE, "512 B were there"),
        Note(NoteCode.TRUNCATED, "the rest was dropped"),
    )
    found = recording_with(Marks.of(), late, cut, Note(NoteCode.NO_STACK, "elsewhere"))

    assert noted(found, series(found, found.timeline(), TIME)) == [
        (0.0, 0.0, late.text),
        (10.0, 10.0, cut.text),
    ]


def test_of_many_gaps_those_with_the_most_missing_events_are_kept() -> None:
    n = 5 * MOST_GAPS
    marks = Marks.of(kind=[MarkKind.GAP] * n, event=np.arange(n) % 5, time_ns=np.zeros(n), value=np.arange(n))
    found = recording_with(marks)
    shown = noted(found, series(found, found.timeline(), TIME))

    assert len(shown) == MOST_GAPS
    assert shown[0][2].startswith(f"{n - MOST_GAPS:,} events")
