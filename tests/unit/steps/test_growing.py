"""Steps and phases of a run that is followed are those that a reader of the whole would find."""

import numpy as np
import pytest

import vramscope.steps
from vramscope.columns.scratch import Scratch
from vramscope.model.marks import MarkKind, Marks, Phase
from vramscope.model.recording import Outcome
from vramscope.steps import StepFinder, resolve

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
STEP = ((FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7), (Phase.ZERO_GRAD, 0))
CLEARING_FIRST = ((Phase.ZERO_GRAD, 0), (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7))
WITHOUT_OPTIMIZER = ((Phase.DATA, 0), (FORWARD, 0), (BACKWARD, 0), (FORWARD, 0), (BACKWARD, 0))
GAN = (*STEP, (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7), (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 8))
FRAME = ((Phase.EVAL, 1), (Phase.EVAL, 2), (Phase.EVAL, 2), (Phase.EVAL, 3))
WITH_EVALUATION = (*STEP * 5, (Phase.EVAL, 0))
INNER = ((Phase.ZERO_GRAD, 0), *STEP)
META = ("begin", *INNER, "end")
LONG_CALLS = ("begin", *INNER * 11, "end")
TRAINER = ("begin", *((Phase.DATA, 0), *STEP) * 5, "end")


class Loop:
    """A program that leaves marks."""

    def __init__(self):
        self.rows = []

    def mark(self, kind, phase=Phase.OTHER, value=0, thread=0):
        n = len(self.rows) + 1
        self.rows.append((kind, phase, 1000 * n, 10 * n, value, thread))

    def turn(self, phases):
        for each in phases:
            if isinstance(each, str):  # a forward around others
                kind = MarkKind.PHASE_BEGIN if each == "begin" else MarkKind.PHASE_END
                self.mark(kind, FORWARD, 99)
                continue
            phase, value = each
            self.mark(MarkKind.PHASE_BEGIN, phase, value)
            self.mark(MarkKind.PHASE_END, phase, value)

    def marks(self):
        names = ("kind", "phase", "time_ns", "event", "value", "thread")
        return Marks.of(**dict(zip(names, zip(*self.rows, strict=True), strict=True)))


def looks(marks, seed=0, step=40):
    """The marks as a reader finds them: some more each time."""
    ends = np.cumsum(np.random.default_rng(seed).integers(1, step, len(marks)))
    for end in ends[ends < len(marks)].tolist():
        yield marks.rows(slice(end)), 10 * end + 5, 1000 * end + 500
    yield marks, 10 * len(marks) + 5, 1000 * len(marks) + 500


def assert_same(found, truth):
    for here, there in zip(found, truth, strict=True):
        for name, column in there.columns():
            assert np.array_equal(getattr(here, name), column), name


@pytest.mark.parametrize(
    "turn",
    [
        STEP, CLEARING_FIRST, WITHOUT_OPTIMIZER, GAN, FRAME, WITH_EVALUATION,
        META, TRAINER, pytest.param(LONG_CALLS, marks=pytest.mark.exhaustive),
        pytest.param((*LONG_CALLS, *STEP), marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_each_look_finds_what_the_whole_says(turn):
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for _ in range(60):
        loop.turn(turn)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.extend(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def part(random):
    """One part of a program, as marks: a loop, with one or several optimizers, or an evaluation."""
    first, second, third = random.integers(1, 6, 3).tolist()
    return [
        STEP * first,
        CLEARING_FIRST * first,
        ((Phase.DATA, 1), (Phase.EVAL, 0)) * second,
        (FORWARD, 0),
        WITHOUT_OPTIMIZER,
        GAN,
        ((FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 10 + third)),
        ((FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 10 + third)) * 25,
        (*STEP * first, (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 9)) * second,
        ((FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 20), (OPTIMIZER, 21)) * second,
    ][random.integers(0, 10)]


@pytest.mark.parametrize("seed", range(40))
def test_any_cutting_into_pieces_gives_the_steps_and_phases_of_the_whole(seed):
    random, loop, so_far = np.random.default_rng(seed), Loop(), StepFinder(least_marks=20)
    chosen = [part(random) for _ in range(3)]
    for _ in range(70):
        if random.random() < 0.1:
            chosen[random.integers(0, 3)] = part(random)
        turn = chosen[random.integers(0, 1 + seed % 3)]
        loop.turn(turn if isinstance(turn[0], tuple) else (turn,))
        if seed % 7 == 6 and random.random() < 0.1:
            loop.mark([MarkKind.STEP, MarkKind.ENTER, MarkKind.EXIT][random.integers(0, 3)], value=1)
    marks = loop.marks()
    for end in sorted(random.integers(0, len(marks), 12).tolist()):
        look = marks.rows(slice(end)), 10 * end + 5, 1000 * end + 500
        assert_same(so_far.extend(*look), resolve(*look))
    for outcome in (Outcome.RUNNING, Outcome.FAILED, Outcome.FINISHED):
        look = marks, 10 * len(marks) + 5, 1000 * len(marks) + 500, outcome
        assert_same(so_far.extend(*look), resolve(*look))


def test_two_threads_that_train_at_once_are_found_as_in_the_whole():
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for at in range(60):
        for phase, behind in zip(STEP, (*STEP[1:], STEP[0]), strict=True):
            turns = ((1, phase),) if at < 10 else ((1, phase), (2, behind))
            for thread, (each, value) in turns:
                loop.mark(MarkKind.PHASE_BEGIN, each, value, thread)
                loop.mark(MarkKind.THREAD, thread=thread)
            for thread, (each, value) in turns:
                loop.mark(MarkKind.PHASE_END, each, value, thread)
    for marks, n_events, end_ns in looks(loop.marks()):
        found, truth = so_far.extend(marks, n_events, end_ns), resolve(marks, n_events, end_ns)

        assert_same(found, truth)
        assert found[1].made_by == truth[1].made_by


@pytest.mark.parametrize("kind", [MarkKind.STEP, MarkKind.ENTER])
def test_a_program_that_says_its_steps_late_is_believed_at_once(kind):
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for i in range(60):
        loop.turn(STEP)
        if i > 40:
            loop.mark(kind, value=1)
            loop.mark(MarkKind.EXIT, value=1)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.extend(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def test_a_block_around_everything_stays_open():
    loop, so_far = Loop(), StepFinder(least_marks=50)
    loop.mark(MarkKind.ENTER)
    for _ in range(60):
        loop.turn(STEP)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.extend(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def gone_through(monkeypatch):
    """Return the list of how many marks are gone through at each look from here on."""
    n_marks, marks_at = [], vramscope.steps.marks_at

    def noticed(marks, rows):
        n_marks.append(len(rows))
        return marks_at(marks, rows)

    monkeypatch.setattr(vramscope.steps, "marks_at", noticed)
    return n_marks


@pytest.mark.parametrize(("turn", "most"), [(STEP, 500), (GAN, 3600), (WITH_EVALUATION, 700)])
def test_finished_steps_are_not_gone_through_again(monkeypatch, turn, most):
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for _ in range(400):
        loop.turn(turn)
    n_marks = gone_through(monkeypatch)
    for look in looks(loop.marks(), step=400):
        found = so_far.extend(*look)

    assert max(n_marks) < most < len(loop.marks()) / 2
    assert_same(found, resolve(*look))


@pytest.mark.parametrize("later", [GAN, WITH_EVALUATION, (*STEP, (Phase.EVAL, 0))])
def test_a_long_run_that_becomes_another_loop_ends_with_the_steps_of_the_whole(later):
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for _ in range(150):
        loop.turn(STEP)
    for _ in range(400):
        loop.turn(later)
    for look in looks(loop.marks(), step=300):
        found = so_far.extend(*look)

    assert_same(found, resolve(*look))


def test_steps_in_files_are_the_same_and_those_of_earlier_looks_stay(tmp_path):
    loop, so_far = Loop(), StepFinder(Scratch(tmp_path))
    for _ in range(12_000):
        loop.turn(STEP)
    marks = loop.marks()
    seen = [(marks.rows(slice(end)), 10 * end + 5, 1000 * end + 500) for end in range(1000, 96_000, 7001)]
    found = [so_far.extend(*look) for look in seen]

    for each, look in zip(found, seen, strict=True):
        assert_same(each, resolve(*look))


def test_marks_that_became_fewer_are_read_again():
    loop, so_far = Loop(), StepFinder(least_marks=50)
    for _ in range(40):
        loop.turn(STEP)
    so_far.extend(loop.marks(), 10**6, 10**9)
    fewer = loop.marks().rows(slice(100))

    assert_same(so_far.extend(fewer, 1005, 100_500), resolve(fewer, 1005, 100_500))
