"""Steps and phases of a run that is followed are those that a reader of the whole would find."""

import numpy as np
import pytest

from vramscope.columns.scratch import Scratch
from vramscope.model.marks import MarkKind, Marks, Phase
from vramscope.steps import growing, resolve
from vramscope.steps.growing import IncrementalSteps

FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
STEP = ((FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7), (Phase.ZERO_GRAD, 0))
CLEARING_FIRST = ((Phase.ZERO_GRAD, 0), (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7))
WITHOUT_OPTIMIZER = ((Phase.DATA, 0), (FORWARD, 0), (BACKWARD, 0), (FORWARD, 0), (BACKWARD, 0))
GAN = (*STEP, (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 7), (FORWARD, 0), (BACKWARD, 0), (OPTIMIZER, 8))
WITH_EVALUATION = (*STEP * 5, (Phase.EVAL, 0))


class Loop:
    """A program that leaves marks."""

    def __init__(self):
        self.rows = []

    def mark(self, kind, phase=Phase.OTHER, value=0, thread=0):
        n = len(self.rows) + 1
        self.rows.append((kind, phase, 1000 * n, 10 * n, value, thread))

    def turn(self, phases):
        for phase, value in phases:
            self.mark(MarkKind.PHASE_BEGIN, phase, value)
            self.mark(MarkKind.PHASE_END, phase, value)

    def marks(self):
        names = ("kind", "phase", "time_ns", "event", "value", "thread")
        return Marks.of(**dict(zip(names, zip(*self.rows, strict=True), strict=True)))


def looks(marks, seed=0):
    """The marks as a reader finds them: some more each time."""
    ends = np.cumsum(np.random.default_rng(seed).integers(1, 40, len(marks)))
    for end in ends[ends < len(marks)].tolist():
        yield marks.rows(slice(end)), 10 * end + 5, 1000 * end + 500
    yield marks, 10 * len(marks) + 5, 1000 * len(marks) + 500


def assert_same(found, truth):
    for here, there in zip(found, truth, strict=True):
        for name, column in there.columns():
            assert np.array_equal(getattr(here, name), column), name


@pytest.mark.parametrize("most_at_once", [100_000, 200])
@pytest.mark.parametrize("turn", [STEP, CLEARING_FIRST, WITHOUT_OPTIMIZER, GAN, WITH_EVALUATION])
def test_each_look_finds_what_the_whole_says(turn, most_at_once):
    loop, so_far = Loop(), IncrementalSteps(least_marks=50, most_at_once=most_at_once)
    for _ in range(60):
        loop.turn(turn)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.resolve(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def test_two_threads_that_train_at_once_are_found_as_in_the_whole():
    loop, so_far = Loop(), IncrementalSteps(least_marks=50)
    for at in range(60):
        for phase, behind in zip(STEP, (*STEP[1:], STEP[0]), strict=True):
            turns = ((1, phase),) if at < 10 else ((1, phase), (2, behind))
            for thread, (each, value) in turns:
                loop.mark(MarkKind.PHASE_BEGIN, each, value, thread)
                loop.mark(MarkKind.THREAD, thread=thread)
            for thread, (each, value) in turns:
                loop.mark(MarkKind.PHASE_END, each, value, thread)
    for marks, n_events, end_ns in looks(loop.marks()):
        found, truth = so_far.resolve(marks, n_events, end_ns), resolve(marks, n_events, end_ns)

        assert_same(found, truth)
        assert found[1].made_by == truth[1].made_by


@pytest.mark.parametrize("kind", [MarkKind.STEP, MarkKind.ENTER])
def test_a_program_that_says_its_steps_late_is_believed_at_once(kind):
    loop, so_far = Loop(), IncrementalSteps(least_marks=50)
    for i in range(60):
        loop.turn(STEP)
        if i > 40:
            loop.mark(kind, value=1)
            loop.mark(MarkKind.EXIT, value=1)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.resolve(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def test_a_block_around_everything_stays_open():
    loop, so_far = Loop(), IncrementalSteps(least_marks=50)
    loop.mark(MarkKind.ENTER)
    for _ in range(60):
        loop.turn(STEP)
    for marks, n_events, end_ns in looks(loop.marks()):
        assert_same(so_far.resolve(marks, n_events, end_ns), resolve(marks, n_events, end_ns))


def test_finished_steps_are_not_gone_through_again(monkeypatch):
    gone_through = []

    def noticed(marks, n_events, end_ns):
        gone_through.append(len(marks))
        return resolve(marks, n_events, end_ns)

    monkeypatch.setattr(growing, "resolve", noticed)
    loop, so_far = Loop(), IncrementalSteps(least_marks=50)
    for _ in range(400):
        loop.turn(STEP)
    n_looks = sum(so_far.resolve(*look) is not None for look in looks(loop.marks(), seed=1))

    assert sum(gone_through) < 0.3 * n_looks * len(loop.marks()) / 2


def test_a_long_run_is_never_gone_through_as_a_whole_again(monkeypatch):
    gone_through = []

    def noticed(marks, n_events, end_ns):
        gone_through.append(len(marks))
        return resolve(marks, n_events, end_ns)

    monkeypatch.setattr(growing, "resolve", noticed)
    loop, so_far = Loop(), IncrementalSteps(least_marks=50, most_at_once=500)
    for _ in range(600):
        loop.turn(STEP)
    for look in looks(loop.marks(), seed=2):
        found = so_far.resolve(*look)

    assert max(gone_through) <= 500 < len(loop.marks()) / 5
    assert_same(found, resolve(*look))


@pytest.mark.parametrize("later", [GAN, WITH_EVALUATION, (*STEP, (Phase.EVAL, 0))])
def test_a_long_run_that_becomes_another_loop_ends_with_the_steps_of_the_whole(later):
    loop, so_far = Loop(), IncrementalSteps(least_marks=50, most_at_once=500)
    for _ in range(150):
        loop.turn(STEP)
    for _ in range(400):
        loop.turn(later)
    for look in looks(loop.marks(), seed=3):
        found = so_far.resolve(*look)

    assert_same(found, resolve(*look))


def test_steps_in_files_are_the_same_and_those_of_earlier_looks_stay(tmp_path):
    loop, so_far = Loop(), IncrementalSteps(Scratch(tmp_path))
    for _ in range(12_000):
        loop.turn(STEP)
    marks = loop.marks()
    seen = [(marks.rows(slice(end)), 10 * end + 5, 1000 * end + 500) for end in range(1000, 96_000, 7001)]
    found = [so_far.resolve(*look) for look in seen]

    for each, look in zip(found, seen, strict=True):
        assert_same(each, resolve(*look))


def test_marks_that_became_fewer_are_read_again():
    loop, so_far = Loop(), IncrementalSteps(least_marks=50)
    for _ in range(40):
        loop.turn(STEP)
    so_far.resolve(loop.marks(), 10**6, 10**9)
    fewer = loop.marks().rows(slice(100))

    assert_same(so_far.resolve(fewer, 1005, 100_500), resolve(fewer, 1005, 100_500))
