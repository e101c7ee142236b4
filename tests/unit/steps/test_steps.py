"""Steps and phases follow from the marks as a person would label the loop."""

import pytest

from vramscope.analysis.step_and_phase import evaluations
from vramscope.model.marks import BackwardKeeps, MarkKind, Marks, Phase
from vramscope.model.recording import Outcome
from vramscope.steps import resolve

LOOP = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
NAMES = ("", "Model", "Adam", "SGD", "Critic", "Generator")


class Program:
    """Writes marks as a program would: each call is one moment, one event apart."""

    def __init__(self):
        self.rows = []
        self.now = 0

    def mark(self, kind, phase=0, *, value=0, name=0, thread=1):
        self.rows.append((kind, phase, 1000 + self.now, self.now, thread, value, name))
        self.now += 1
        return self

    def begin(self, phase, **more):
        return self.mark(MarkKind.PHASE_BEGIN, phase, **more)

    def end(self, phase, **more):
        return self.mark(MarkKind.PHASE_END, phase, **more)

    def whole(self, phase, **more):
        return self.begin(phase, **more).end(phase, **more)

    def enter(self, depth=0):
        return self.mark(MarkKind.ENTER, value=depth)

    def exit(self, depth=0):
        return self.mark(MarkKind.EXIT, value=depth)

    def step(self, *optimizers):
        self.whole(Phase.FORWARD, name=1).whole(Phase.BACKWARD)
        for optimizer in optimizers or (7,):
            self.whole(Phase.OPTIMIZER, value=optimizer, name=2)
        return self

    def updates(self, text):
        """One forward, backward and update for each letter, which names the optimizer."""
        for letter in text:
            self.step(ord(letter))
        return self

    def resolve(self, *outcome):
        columns = dict(zip(Marks.DTYPES, zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        return resolve(Marks.of(**columns, names=NAMES), self.now + 5, 9999, *outcome)


def spans(steps):
    return list(zip(steps.start_event.tolist(), steps.end_event.tolist(), strict=True))


def test_no_marks_mean_no_steps_and_no_phases():
    steps, phases = Program().resolve()

    assert (len(steps), len(phases)) == (0, 0)


def test_a_step_ends_with_its_optimizer_and_begins_with_the_end_of_the_last():
    steps, phases = Program().enter().step().step().exit().resolve()

    assert spans(steps) == [(1, 6), (6, 12)]
    assert phases.step.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert steps.start_ns.tolist() == [1001, 1006]


def test_the_last_step_keeps_the_zero_grad_after_its_optimizer():
    steps, _ = Program().enter().step().whole(Phase.ZERO_GRAD, name=2).exit().resolve()

    assert spans(steps) == [(1, 8)]


def test_a_zero_grad_right_after_the_optimizer_belongs_to_its_step():
    program = Program().enter()
    for _ in range(2):
        program.step().whole(Phase.ZERO_GRAD, name=2)

    assert spans(program.exit().resolve()[0]) == [(1, 8), (8, 16)]


def test_a_loop_that_clears_first_keeps_its_zero_grads_in_the_next_step():
    program = Program().enter()
    for _ in range(2):
        program.whole(Phase.ZERO_GRAD, name=2).step()

    assert spans(program.exit().resolve()[0]) == [(1, 8), (8, 16)]


def test_an_unfinished_step_lasts_to_the_end_of_the_trace():
    steps, phases = Program().step().begin(Phase.FORWARD, name=1).resolve()

    assert spans(steps) == [(0, 5), (5, 12)]
    assert (phases.end_event[-1], phases.end_ns[-1]) == (12, 9999)


def test_gradient_accumulation_is_one_step():
    program = Program()
    program.whole(Phase.FORWARD).whole(Phase.BACKWARD).step()

    assert len(program.resolve()[0]) == 1


def test_a_gan_steps_when_its_last_optimizer_does():
    program = Program()
    for _ in range(3):
        program.step(1).step(2)

    steps, _ = program.resolve()

    assert [end for _, end in spans(steps)] == [11, 23, 35]


def test_five_critic_steps_to_one_generator_step_are_one_step():
    program = Program()
    for _ in range(2):
        for _ in range(5):
            program.step(1)
        program.step(2)

    assert len(program.resolve()[0]) == 2


def test_an_optimizer_that_steps_once_an_epoch_does_not_make_the_steps():
    program = Program()
    for _ in range(50):
        program.step(1)
    program.step(2)

    assert len(program.resolve()[0]) == 51


def test_one_nested_entry_is_one_step_whatever_happens_inside():
    program = Program().enter()
    for _ in range(2):
        program.enter(1).step(1).step(1).exit(1)

    steps, phases = program.exit().resolve()

    assert spans(steps) == [(1, 14), (15, 28)]
    assert set(phases.step.tolist()) == {0, 1}


def test_a_single_nested_entry_around_a_loop_is_looked_into():
    program = Program().enter().enter(1)
    for _ in range(4):
        program.step()

    assert len(program.exit(1).exit().resolve()[0]) == 4
    assert len(Program().enter().enter(1).step().exit(1).exit().resolve()[0]) == 1


def test_one_top_level_entry_per_step_is_one_step_each():
    program = Program()
    for _ in range(3):
        program.enter().step().exit()

    assert spans(program.resolve()[0]) == [(0, 7), (8, 15), (16, 23)]


def test_top_level_entries_around_whole_loops_are_looked_into():
    program = Program()
    for _ in range(2):
        program.enter().step().step().exit()

    assert len(program.resolve()[0]) == 4


def test_the_programs_own_steps_win():
    program = Program().enter()
    for _ in range(2):
        program.step().step().mark(MarkKind.STEP)

    assert [end for _, end in spans(program.exit().resolve()[0])] == [13, 26]


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.EVAL])
def test_inference_steps_are_the_outermost_forwards(phase):
    steps, phases = Program().enter().whole(phase).whole(phase).exit().resolve()

    assert spans(steps) == [(1, 2), (3, 4)]
    assert phases.step.tolist() == [0, 1]


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.EVAL])
@pytest.mark.parametrize(
    ("calls", "frames"),
    [
        ("ABABAB", "AB AB AB"),
        ("AABAABAAB", "AAB AAB AAB"),
        ("WABCABCAB", "W ABC ABC AB"),  # a warm-up of another module, and the end within a frame
        ("AAAAABBBBBAAAAABBBBB", "A A A A A B B B B B A A A A A B B B B B"),  # one after the other
        ("EDDDEDDDEDDDD", "E D D D E D D D E D D D D"),  # a decoder is called as often as the text is long
        ("AAB", "A A B"),
    ],
)
def test_modules_that_are_called_in_turn_are_one_frame(phase, calls, frames):
    program = Program()
    for module in calls:
        program.whole(phase, value=ord(module))
    steps, _ = program.resolve()

    n_calls = [len(frame) for frame in frames.split()]
    firsts = [sum(n_calls[:at]) for at in range(len(n_calls))]
    assert spans(steps) == [(2 * at, 2 * (at + n) - 1) for at, n in zip(firsts, n_calls, strict=True)]


def test_evaluations_before_the_first_training_forward_are_no_steps():
    """The marks of a program that ran out of memory in the forward of its first iteration."""
    program = Program().enter()
    for _ in range(4):
        program.whole(Phase.EVAL)
    steps, phases = program.begin(Phase.FORWARD).resolve()

    assert spans(steps) == [(9, 15)]
    assert phases.step.tolist() == [-1, -1, -1, -1, 0]


def test_a_loop_without_optimizer_steps_with_its_backward():
    program = Program()
    for _ in range(2):
        program.whole(Phase.FORWARD).whole(Phase.BACKWARD)

    assert [end for _, end in spans(program.resolve()[0])] == [3, 7]


def test_a_second_backward_without_a_forward_is_the_same_turn():
    program = Program()
    for _ in range(2):
        program.whole(Phase.FORWARD).whole(Phase.BACKWARD).whole(Phase.BACKWARD)

    assert [end for _, end in spans(program.resolve()[0])] == [5, 11]


def test_an_update_by_hand_belongs_to_the_turn_that_it_ends():
    program = Program()
    for _ in range(2):
        program.whole(Phase.DATA).whole(Phase.FORWARD).whole(Phase.BACKWARD)
        program.mark(MarkKind.MARK)  # p.data -= lr * p.grad

    assert spans(program.resolve()[0]) == [(0, 7), (7, 12)]


def test_an_evaluation_now_and_then_is_part_of_no_step():
    program = Program()
    for turn in range(4):
        program.step()
        if turn == 1:
            program.whole(Phase.DATA).whole(Phase.EVAL).whole(Phase.DATA).whole(Phase.EVAL)

    assert spans(program.resolve()[0]) == [(0, 5), (5, 11), (19, 25), (25, 31)]


def test_a_teacher_that_runs_in_every_step_is_part_of_it():
    program = Program()
    for _ in range(3):
        program.whole(Phase.EVAL).step()

    assert [end for _, end in spans(program.resolve()[0])] == [7, 15, 23]
    assert [start for start, _ in spans(program.resolve()[0])][1:] == [7, 15]


def test_between_a_forward_and_its_backward_is_the_loss():
    program = Program().whole(Phase.FORWARD, name=1).mark(MarkKind.MARK).whole(Phase.BACKWARD)
    program.mark(MarkKind.MARK).whole(Phase.OPTIMIZER)

    _, phases = program.resolve()

    assert phases.phase.tolist() == [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER]
    assert (phases.start_event[1], phases.end_event[1]) == (1, 3)
    assert (phases.start_ns[1], phases.end_ns[1]) == (1001, 1003)


def test_gradients_cleared_right_before_backward_are_no_loss():
    _, phases = Program().whole(Phase.FORWARD).whole(Phase.ZERO_GRAD).whole(Phase.BACKWARD).resolve()

    assert phases.phase.tolist() == [Phase.FORWARD, Phase.LOSS, Phase.ZERO_GRAD, Phase.BACKWARD]


@pytest.mark.parametrize("between", [Phase.EVAL, Phase.DATA])
def test_what_the_program_does_between_is_no_loss(between):
    _, phases = Program().whole(Phase.FORWARD).whole(between).whole(Phase.BACKWARD).resolve()

    assert Phase.LOSS not in phases.phase.tolist()


def test_what_the_user_names_hides_no_steps():
    program = Program().begin(Phase.USER, name=1, thread=0)
    for _ in range(3):
        program.begin(Phase.USER, name=4, thread=0).step().end(Phase.USER, name=4, thread=0)

    steps, phases = program.end(Phase.USER, name=1, thread=0).resolve()

    assert len(steps) == 3
    assert phases.phase.tolist().count(Phase.LOSS) == 3


def test_recompute_on_autograds_thread_is_inside_the_backward_that_waits_for_it():
    _, phases = Program().begin(Phase.BACKWARD).whole(Phase.RECOMPUTE, thread=2).end(Phase.BACKWARD).resolve()

    assert phases.phase.tolist() == [Phase.BACKWARD, Phase.RECOMPUTE]
    assert phases.depth.tolist() == [0, 1]
    assert phases.end_event.tolist() == [3, 2]


def test_a_replica_on_a_thread_of_its_own_is_inside_the_forward_that_waits_for_it():
    program = Program().begin(Phase.FORWARD).whole(Phase.FORWARD, thread=2).end(Phase.FORWARD)

    _, phases = program.whole(Phase.BACKWARD).resolve()

    assert phases.depth.tolist()[:2] == [0, 1]
    assert set(phases.thread.tolist()) == {1}


def test_two_threads_that_train_at_once_have_phases_of_their_own_and_the_steps_of_one():
    program = Program()
    for _ in range(3):
        for phase, behind in zip(LOOP, (Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD), strict=True):
            program.begin(phase, value=7).begin(behind, value=8, thread=2)
            program.end(phase, value=7).end(behind, value=8, thread=2)

    steps, phases = program.resolve()

    marked = phases.rows(phases.phase != Phase.LOSS)
    assert not phases.depth.any()
    assert marked.phase[marked.thread == 1].tolist() == [*LOOP] * 3
    assert len(steps) == 3
    assert (steps.end_event[:-1] <= steps.start_event[1:]).all()


def test_a_phase_that_an_exception_left_open_ends_with_the_one_around_it():
    _, phases = Program().begin(Phase.USER, name=1).begin(Phase.FORWARD).end(Phase.USER, name=1).resolve()

    assert phases.end_event.tolist() == [2, 2]


def test_leaving_the_outermost_entry_closes_what_is_open():
    _, phases = Program().enter().begin(Phase.FORWARD).exit().whole(Phase.DATA).resolve()

    assert phases.end_event.tolist() == [2, 4]
    assert phases.depth.tolist() == [0, 0]


def test_an_end_without_a_begin_is_ignored():
    assert len(Program().end(Phase.BACKWARD).resolve()[1]) == 0


def test_building_the_model_before_the_loop_belongs_to_no_step():
    program = Program().enter().mark(MarkKind.MARK, name=1)

    steps, _ = program.step().resolve()

    assert spans(steps) == [(2, 7)]


@pytest.mark.parametrize(
    ("updates", "n_steps"),
    [
        ("A" * 20 + "B" * 5, 25),  # two phases of a training
        ("A" * 6 + "B" * 6 + "C" * 6, 18),  # trials or folds, a new optimizer each
        ("A" * 30 + "B" * 30 + "A" * 30, 90),
        ("AB" * 8, 8),  # a GAN
        ("ABC" * 8, 8),
        ("AB", 1),
        ("ABA", 2),
        ("AB" * 6 + "CD" * 6, 12),  # GANs of two folds
        ("A" * 10 + "AB" * 6, 16),  # the generator alone, then both
        ("AB" * 6 + "A" * 10, 16),
        ("ABB" * 6, 6),
        ("AAAAAB" * 6, 6),  # five steps of the critic to one of the generator
        ("AB" + "AAAAAB" * 5 + "AAA", 7),  # that begin with one, and end within a turn
        ("BAAAAA" * 6, 7),
        ("ABABABC" * 5, 5),
        (("A" * 15 + "B" * 15) * 3, 90),  # epochs that alternate
        ("A" * 30 + "BC" * 8 + "A" * 30, 68),
        ("IMJMKMLM", 4),  # an inner optimizer, made anew for each task
    ],
)
def test_every_optimizers_steps_count_and_a_turn_of_several_is_one(updates, n_steps):
    steps, phases = Program().updates(updates).resolve()

    assert len(steps) == n_steps
    # No work is lost: each phase is in a step, and each step has a backward.
    assert (phases.step >= 0).all()
    assert set(phases.step[phases.phase == Phase.BACKWARD].tolist()) == set(range(n_steps))


def test_two_optimizers_that_update_after_one_backward_are_one_step_whenever_they_do():
    program = Program()
    for turn in range(60):
        program.step(*((1, 2) if turn % 30 == 29 else (1,)))

    assert len(program.resolve()[0]) == 60


def test_a_second_training_whose_updates_run_their_own_backward_loses_no_step():
    """Adam, then L-BFGS, whose closure is run within its step."""
    program = Program()
    for _ in range(3):
        program.step(1)
    for _ in range(3):
        program.begin(Phase.OPTIMIZER, value=2).whole(Phase.FORWARD).whole(Phase.BACKWARD)
        program.end(Phase.OPTIMIZER, value=2)

    assert len(program.resolve()[0]) == 6


def meta_step(program):
    """A forward that updates the network itself."""
    program.begin(Phase.FORWARD, name=1)
    for _ in range(2):
        program.whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=7, name=2)
    return program.end(Phase.FORWARD, name=1)


def test_an_optimizer_that_steps_within_a_forward_steps_once_a_forward():
    program = Program()
    for turn in range(12):
        meta_step(program)
        if turn % 4 == 0:
            for _ in range(5):
                program.whole(Phase.FORWARD, name=1).whole(Phase.BACKWARD)

    steps, _ = program.resolve()

    assert len(steps) == 12


def trainer(program, n_updates, *phases):
    """A forward that is a whole loop of training, of *phases* and an update."""
    program.begin(Phase.FORWARD, name=4)
    for _ in range(n_updates):
        for phase in phases:
            program.whole(phase, name=1)
        program.whole(Phase.OPTIMIZER, value=7, name=2)
    return program.end(Phase.FORWARD, name=4)


@pytest.mark.parametrize("n_calls", [1, 3, 40])
@pytest.mark.parametrize("phases", [(), (Phase.ZERO_GRAD,), (Phase.FORWARD,)])
def test_a_forward_that_loads_batches_and_updates_is_a_loop(n_calls, phases):
    program = Program()
    for _ in range(n_calls):
        trainer(program, 5, Phase.DATA, *phases, Phase.BACKWARD)

    steps, found = program.resolve()

    assert len(steps) == 5 * n_calls
    assert (found.depth == 0).all()
    assert (found.phase == Phase.FORWARD).sum() == (5 * n_calls if Phase.FORWARD in phases else 0)


@pytest.mark.parametrize(("n_updates", "n_steps"), [(1, 4), (5, 4), (7, 28), (30, 120)])
def test_a_forward_with_enough_updates_for_a_search_of_leaks_is_a_loop(n_updates, n_steps):
    program = Program()
    for _ in range(4):
        trainer(program, n_updates, Phase.ZERO_GRAD, Phase.FORWARD, Phase.BACKWARD)

    assert len(program.resolve()[0]) == n_steps


def test_the_inner_updates_of_a_meta_learner_are_no_steps():
    program = Program()
    for _ in range(8):
        trainer(program, 10, Phase.ZERO_GRAD, Phase.FORWARD, Phase.BACKWARD)
        program.whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=8, name=3)

    assert len(program.resolve()[0]) == 8


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_last_forward_with_gradients_is_a_step_only_if_the_program_did_not_end_there(outcome):
    steps, _ = Program().step().step().whole(Phase.FORWARD, name=1).resolve(outcome)

    assert len(steps) == (2 if outcome is Outcome.FINISHED else 3)


@pytest.mark.parametrize(("outcome", "end"), [(Outcome.FAILED, 8), (Outcome.FINISHED, 2)])
def test_what_failed_right_after_the_first_forward_is_of_its_step(outcome, end):
    """The loss of the first step runs out of memory: no backward and no optimizer has run yet."""
    steps, _ = Program().enter().whole(Phase.FORWARD, name=1).resolve(outcome)

    assert spans(steps) == [(1, end)]


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_gradients_that_were_asked_for_after_the_last_step_are_none_of_a_finished_program(outcome):
    program = Program().step().step().whole(Phase.FORWARD, name=1)
    steps, _ = program.whole(Phase.BACKWARD, value=BackwardKeeps.RETURNS).resolve(outcome)

    assert len(steps) == (2 if outcome is Outcome.FINISHED else 3)


def test_a_backward_after_the_last_step_is_an_unfinished_one():
    program = Program().step().step().whole(Phase.FORWARD, name=1).whole(Phase.BACKWARD)

    assert len(program.resolve(Outcome.FINISHED)[0]) == 3


@pytest.mark.parametrize(
    ("outcome", "n_steps"), [(Outcome.FINISHED, 2), (Outcome.FAILED, 0), (Outcome.DIED, 0)]
)
def test_forwards_without_gradients_are_no_steps_of_a_run_that_ended_before_it_trained(outcome, n_steps):
    program = Program().enter().whole(Phase.EVAL).whole(Phase.EVAL).exit()

    assert len(program.resolve(outcome)[0]) == n_steps


def test_what_an_evaluation_does_between_and_after_its_forwards_belongs_to_it():
    program = Program()
    for turn in range(6):
        program.whole(Phase.DATA, value=5).step()
        if turn == 2:
            begin = program.now + 2
            for _ in range(3):
                program.whole(Phase.DATA, value=6).whole(Phase.EVAL, name=1).mark(MarkKind.MARK)
            program.whole(Phase.DATA, value=6)  # the loader has no more
            program.mark(MarkKind.MARK).mark(MarkKind.MARK)  # predictions are joined
            end = program.now
    steps, phases = program.resolve(Outcome.FINISHED)

    assert len(steps) == 6
    assert steps.start_event[3] == end
    assert [columns.tolist() for columns in evaluations(steps, phases, program.now)] == [[begin], [end]]


def test_code_after_an_evaluation_belongs_to_it_in_a_loop_that_makes_its_batches_itself():
    program = Program()
    for turn in range(6):
        program.mark(MarkKind.MARK).step().whole(Phase.ZERO_GRAD)
        if turn == 2:
            program.whole(Phase.EVAL, name=1).whole(Phase.EVAL, name=1)
            program.mark(MarkKind.MARK).mark(MarkKind.MARK).mark(MarkKind.MARK)
    steps, phases = program.resolve(Outcome.FINISHED)

    (begin,), (end,) = evaluations(steps, phases, program.now)
    assert (begin, end) == (27, 35)
    assert steps.start_event[3] == 35


def epochs(evaluate):
    """Write six steps of the module 40, and what *evaluate* writes after the third."""
    program = Program()
    for turn in range(6):
        program.whole(Phase.FORWARD, value=40, name=1).whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=7)
        if turn == 2:
            begin = program.now
            evaluate(program)
            end = program.now
    return program.resolve(Outcome.FINISHED), program.now, begin, end


def test_an_evaluation_that_runs_with_gradients_on_is_part_of_no_step():
    def evaluate(program):
        for _ in range(3):
            program.whole(Phase.FORWARD, value=-40, name=1).whole(Phase.LOSS, value=50)
        program.mark(MarkKind.MARK)  # the losses are joined

    (steps, phases), n_events, begin, end = epochs(evaluate)

    assert len(steps) == 6
    assert steps.start_event[3] == end
    assert [columns.tolist() for columns in evaluations(steps, phases, n_events)] == [[begin], [end]]
    inside = (phases.start_event >= begin) & (phases.start_event < end)
    assert phases.phase[inside].tolist() == [Phase.EVAL] * 6


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(-40, id="training in evaluation mode"),
        pytest.param(-41, id="a frozen network of the loss"),
    ],
)
def test_a_forward_in_evaluation_mode_that_a_backward_follows_trains(value):
    def attack(program):
        program.whole(Phase.FORWARD, value=value, name=1).whole(Phase.BACKWARD)

    (_, phases), _, begin, _ = epochs(attack)

    assert phases.phase[phases.start_event == begin].tolist() == [Phase.FORWARD]


def test_a_frozen_network_that_is_always_in_evaluation_mode_is_part_of_the_step():
    (steps, phases), _, begin, _ = epochs(lambda program: program.whole(Phase.FORWARD, value=-41, name=1))

    assert phases.phase[phases.start_event == begin].tolist() == [Phase.FORWARD]
    assert steps.start_event[3] == begin - 1


def test_a_last_forward_in_evaluation_mode_is_an_evaluation_once_the_program_is_over():
    program = Program().step().step().whole(Phase.FORWARD, value=-40, name=1)

    assert [program.resolve(*end)[1].phase[-1] for end in ((), (Outcome.FINISHED,))] == [
        Phase.FORWARD,
        Phase.EVAL,
    ]


@pytest.mark.parametrize("outcome", [Outcome.RUNNING, Outcome.FAILED])
def test_a_trained_model_in_evaluation_mode_after_the_last_step_begins_no_step(outcome):
    program = Program()
    for _ in range(3):
        program.whole(Phase.FORWARD, value=40, name=1).whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=7)
    program.whole(Phase.DATA, value=6).whole(Phase.FORWARD, value=-40, name=1).whole(Phase.LOSS, value=50)

    steps, phases = program.begin(Phase.FORWARD, value=-40, name=1).resolve(outcome)

    assert len(steps) == 3
    assert phases.phase[-3:].tolist() == [Phase.EVAL] * 3
    assert phases.step[-4:].tolist() == [-1] * 4


def test_a_model_that_trains_in_evaluation_mode_begins_its_next_step():
    program = Program()
    for _ in range(3):
        program.whole(Phase.FORWARD, value=-40, name=1).whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=7)

    steps, phases = program.begin(Phase.FORWARD, value=-40, name=1).resolve(Outcome.RUNNING)

    assert (len(steps), phases.phase[-1]) == (4, Phase.FORWARD)


def test_an_averaged_copy_that_is_always_in_evaluation_mode_is_evaluated_outside_of_steps():
    def evaluate(program):
        for _ in range(3):
            program.whole(Phase.DATA, value=6).whole(Phase.FORWARD, value=-41, name=1)
            program.whole(Phase.LOSS, value=50)
        program.mark(MarkKind.MARK)  # the losses are joined

    (steps, phases), n_events, begin, end = epochs(evaluate)

    assert len(steps) == 6
    assert steps.start_event[3] == end
    assert [columns.tolist() for columns in evaluations(steps, phases, n_events)] == [[begin + 2], [end]]


@pytest.mark.parametrize("n_forwards", [1, 2])
def test_a_frozen_network_that_every_step_runs_first_is_part_of_it(n_forwards):
    program = Program()
    for _ in range(4):
        for _ in range(n_forwards):
            program.whole(Phase.FORWARD, value=-41, name=1)
        program.whole(Phase.FORWARD, value=40, name=1).whole(Phase.BACKWARD).whole(Phase.OPTIMIZER, value=7)
    program.whole(Phase.FORWARD, value=-41, name=1)

    steps, phases = program.resolve(Outcome.RUNNING)

    assert len(steps) == 5
    assert Phase.EVAL not in phases.phase.tolist()


def test_an_evaluation_at_the_end_of_a_run_lasts_as_long_as_the_run():
    program = Program().step().step().whole(Phase.EVAL, name=1).mark(MarkKind.MARK)
    steps, phases = program.resolve(Outcome.FAILED)

    assert len(steps) == 2
    assert [columns.tolist() for columns in evaluations(steps, phases, program.now)] == [[12], [15]]
