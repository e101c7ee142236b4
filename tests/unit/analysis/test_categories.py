"""Identity decides; then birth, death and phase; what nobody can know stays unknown; bytes sum up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.categories import Reason, categories
from vramscope.analysis.timeline import timeline
from vramscope.model.marks import Category, Labels, MarkKind, Marks, Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action

A, R, C = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
OPS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4096)), max_size=60)
LABELS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8), st.integers(0, 8)), max_size=20)


def during(*spans: tuple[Phase, int, int], n_steps: int = 1, length: int = 100) -> dict[str, Any]:
    """Phases by events, closed by marks, in steps of *length* events."""
    phase, start, end = zip(*spans, strict=True)
    end_ns = [1000 + at for at in end]
    return {
        "steps": Steps.of(
            index=range(n_steps),
            start_event=[length * i for i in range(n_steps)],
            end_event=[length * (i + 1) for i in range(n_steps)],
        ),
        "phases": Phases.of(
            phase=phase,
            step=[at // length for at in start],
            depth=[sum(s < at < e for _, s, e in spans) for at in start],
            start_event=start,
            end_event=end,
            end_ns=end_ns,
        ),
        "marks": Marks.of(kind=[MarkKind.PHASE_END] * len(end), phase=phase, time_ns=end_ns),
    }


def of(history: Recording) -> list[Category]:
    return [Category(int(value)) for value in categories(history).assigned.category]


def test_what_forward_leaves_for_backward_is_an_activation(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 2, 10), (A, 3, 10), (R, 1, 10), (R, 3, 10),
        **during((Phase.FORWARD, 0, 4), (Phase.BACKWARD, 4, 6)),
    )  # fmt: skip

    assert of(history) == [Category.ACTIVATION, Category.TEMPORARY, Category.ACTIVATION]


def test_what_backward_leaves_is_a_gradient(recording):
    history = recording((A, 1, 10), (A, 2, 10), (R, 2, 10), (A, 9, 1), **during((Phase.BACKWARD, 0, 3)))

    assert of(history) == [Category.GRADIENT, Category.TEMPORARY, Category.UNKNOWN]


def test_what_an_optimizer_keeps_is_its_state_and_what_a_loader_gives_is_input(recording):
    history = recording((A, 1, 10), (A, 2, 10), **during((Phase.DATA, 0, 1), (Phase.OPTIMIZER, 1, 2)))

    assert of(history) == [Category.INPUT, Category.OPTIMIZER_STATE]


def test_a_recompute_inside_of_backward_makes_activations(recording):
    history = recording(
        (A, 1, 10), (A, 2, 10), (R, 2, 10), (R, 1, 10),
        **during((Phase.BACKWARD, 0, 4), (Phase.RECOMPUTE, 0, 2)),
    )  # fmt: skip
    history = Recording(
        trace=history.trace,
        marks=history.marks,
        steps=history.steps,
        phases=Phases.of(**dict(history.phases.columns()) | {"depth": [0, 1]}),
    )

    assert of(history) == [Category.ACTIVATION, Category.ACTIVATION]


def test_what_a_loss_function_saves_is_an_activation_as_its_backward_frees_it(recording):
    """Blocks 1 and 2 are born between the phases: backward frees 1, the program 2 after it, 3 never."""
    history = recording(
        (A, 1, 10), (A, 2, 10), (A, 3, 10), (R, 1, 10), (R, 2, 10),
        **during((Phase.BACKWARD, 3, 4)),
    )  # fmt: skip

    assert of(history) == [Category.ACTIVATION, Category.UNKNOWN, Category.UNKNOWN]


def test_what_another_steps_backward_frees_stays_unknown(recording):
    history = recording((A, 1, 10), (R, 1, 10), **during((Phase.BACKWARD, 1, 2), n_steps=2, length=1))

    assert of(history) == [Category.UNKNOWN]


def test_what_outlives_the_next_step_is_not_an_activation(recording):
    # A forward may also fill a cache, or leak.
    rows = [(A, 1, 10)] + [(A, 100 + i, 1) for i in range(8)] + [(R, 1, 10)]
    spans = during((Phase.FORWARD, 0, 1), (Phase.BACKWARD, 1, 2), n_steps=4, length=2)

    assert of(recording(*rows, **spans))[0] is Category.UNKNOWN


def test_what_is_live_in_a_phase_still_open_is_unknown(recording):
    spans = during((Phase.BACKWARD, 0, 3)) | {"marks": Marks.of()}
    history = recording((A, 1, 10), (A, 2, 10), (R, 2, 10), **spans)

    assert of(history) == [Category.UNKNOWN, Category.TEMPORARY]


def test_a_label_wins_over_the_phase_and_says_so(recording):
    labels = Labels.of(event=[1], address=[1], category=[Category.PARAMETER])
    history = recording((A, 1, 10), (A, 2, 10), labels=labels, **during((Phase.BACKWARD, 0, 2)))

    found = categories(history).assigned

    assert found.category.tolist() == [Category.PARAMETER, Category.GRADIENT]
    assert found.reason.tolist() == [Reason.IDENTITY, Reason.LEFT_BY_BACKWARD]
    assert found.label.tolist() == [0, -1]


def test_a_label_belongs_to_the_block_that_was_live_then(recording):
    labels = Labels.of(
        event=[0, 1, 3, 4], address=[7, 7, 7, 7],
        category=[Category.BUFFER, Category.INPUT, Category.PARAMETER, Category.GRADIENT],
    )  # fmt: skip
    history = recording((A, 7, 10), (R, 7, 10), (C, 7, 10), (A, 7, 10), labels=labels)

    # Instants 0 and 3: nothing lives at 7.
    assert of(history) == [Category.INPUT, Category.GRADIENT]


def test_the_last_label_of_a_block_counts(recording):
    labels = Labels.of(event=[2, 1], address=[1, 1], category=[Category.PARAMETER, Category.ACTIVATION])

    assert of(recording((A, 1, 10), (A, 2, 10), labels=labels))[0] is Category.PARAMETER


def test_what_was_there_before_can_be_labelled(play):
    recording = play([(0, 1), (0, 3)], 2).recording
    labels = Labels.of(event=[0], address=[4096], category=[Category.PARAMETER])

    history = Recording(trace=recording.trace, initial=recording.initial, labels=labels)

    assert of(history) == [Category.PARAMETER]


def test_what_nothing_is_known_about_is_unknown(recording):
    found = categories(recording((A, 1, 512)))

    assert found.totals == {"unknown": 512}
    assert not found.is_known
    assert categories(Recording()).totals == {}


@given(OPS, LABELS, st.integers(0, 60))
def test_the_categories_sum_up_to_what_is_allocated(play, ops, labels, instant):
    recording = play(ops, 10).recording
    event, slot, category = zip(*labels, strict=True) if labels else ((), (), ())
    history = Recording(
        trace=recording.trace,
        initial=recording.initial,
        labels=Labels.of(event=event, address=[4096 * number for number in slot], category=category),
    )
    instant = min(instant, len(recording.trace))

    assert categories(history, instant).n_bytes.sum() == timeline(history).allocated_bytes[instant]
