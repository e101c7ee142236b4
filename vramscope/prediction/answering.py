"""Which dry runs answer one trial, and what they say together.

A program is run again where it takes a branch by a value that nobody computed, for the other branch; and
without a limit where memory runs out, to know what it needs. How the runs are made is up to the caller: in
this process, or several at once in others.
"""

import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

from vramscope.errors import VramscopeError
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.prediction import ChangedAnswer, Choice, OtherRun, Prediction
from vramscope.prediction.cards import with_cards
from vramscope.prediction.trial import UNLIMITED_BYTES, Trial, rooms
from vramscope.store.prediction import write

Outcome: TypeAlias = Prediction | VramscopeError
"""What came of a trial: an error has one sentence."""
Answering: TypeAlias = Generator[list[Trial], list[Outcome], Prediction]
"""Yields trials that each are one dry run, is sent their outcomes, and returns the answer."""
_MOST_OTHERS = 8
"""Runs with one answer changed, each of which takes as long as the first one."""


def answering(trial: Trial) -> Answering:
    """Return the answer of one trial, from as many dry runs as it takes; it is kept in the recording.

    Raises VramscopeError where the first run has no answer.
    """
    (first,) = yield [trial]
    if isinstance(first, VramscopeError):
        raise first
    if not first.peak_allocated_bytes and first.out_of_memory is None:
        if trial.directory is None:
            discard(first)
        raise VramscopeError(
            f"{trial.name} put nothing on the card, so there is nothing to predict: it never asks for the "
            "card (--as-cuda runs it as if its CPU tensors lay there), ended early (see what it printed), or "
            "needs several cards: --ranks N"
        )
    found = _with_moments(first)
    own = replace(trial, directory=None, is_quiet=True)
    answers = [each for choice in found.choices for each in choice.otherwise][:_MOST_OTHERS]
    if answers:
        outcomes = yield [replace(own, answer=answer) for answer in answers]
        found = with_others(found, list(zip(answers, outcomes, strict=True)))
        for outcome in outcomes:
            discard(outcome)
    if found.out_of_memory is not None and trial.measures_need:
        is_exact = first.range_bytes[0] == first.peak_allocated_bytes
        found = yield from _without_limit(found, own, is_exact=is_exact)
    found = with_cards(found, rooms())
    write(found)
    return found


class OpenTrial:
    """A trial whose dry runs are under way."""

    def __init__(self, trial: Trial) -> None:
        self._answering = answering(trial)
        self.wanted = next(self._answering)
        """The runs to make next."""

    def take(self, outcomes: list[Outcome]) -> Outcome | None:
        """Take the outcomes of all wanted runs; return the answer, or None where other runs are wanted."""
        try:
            self.wanted = self._answering.send(outcomes)
        except StopIteration as end:
            return end.value
        except VramscopeError as error:
            return error
        return None


def answer_here(trial: Trial, run: Callable[[Trial], Outcome]) -> Prediction:
    """Return the answer of one trial whose dry runs are made by *run*, one after the other."""
    open_trial, answer = OpenTrial(trial), None
    while answer is None:
        answer = open_trial.take([run(each) for each in open_trial.wanted])
    if isinstance(answer, VramscopeError):
        raise answer
    return answer


def _without_limit(found: Prediction, trial: Trial, *, is_exact: bool) -> Answering:
    """Add what the program needs: the same card, with memory without end."""
    try:
        whole = yield from answering(replace(trial, capacity=UNLIMITED_BYTES))
    except VramscopeError:
        return found
    discard(whole)
    found = replace(found, without_limit=replace(whole, run=found.run, loaded=None))
    # What may need less than the peaks that were reached may not run out of memory either.
    if not is_exact and found.need.allocated_bytes <= found.capacity_bytes - found.context_bytes:
        found = replace(found, fits=None)
    return found


def discard(outcome: Outcome) -> None:
    """Delete the recording of a run without a directory of its own, of which only the figures are kept."""
    if isinstance(outcome, Prediction):
        shutil.rmtree(outcome.run.parent, ignore_errors=True)


def _with_moments(first: Prediction) -> Prediction:
    """Add what the recording of the first run says: the step and the phase of its peak, and of its end."""
    from vramscope.analysis.step_and_phase import step_and_phase_at
    from vramscope.loading import load

    recording = load(first.run).recordings[0]
    peak, point = recording.peak().allocated, first.out_of_memory_point
    if point is not None:
        event = int(recording.marks.event[recording.marks.kind == MarkKind.OOM][0])
        step, phase = step_and_phase_at(recording, event)
        point = replace(point, step=step, phase=_lower(phase))
    return replace(
        first, phase=_lower(peak.phase), step=peak.step, out_of_memory_point=point, loaded=recording
    )


def _lower(phase: Phase | None) -> str | None:
    return None if phase is None else phase.name.lower()


def with_others(found: Prediction, others: Sequence[tuple[ChangedAnswer, Outcome]]) -> Prediction:
    """Return the prediction with the range and the verdict of all runs, each of which changes one answer."""
    choices = {each: choice for choice in found.choices for each in choice.otherwise}
    runs = tuple(_other_run(choices[answer], answer, outcome) for answer, outcome in others)
    low, high = found.range_bytes
    lows = [low, *(each.least_allocated_bytes for each in runs if each.least_allocated_bytes is not None)]
    highs = [high, *(each.most_allocated_bytes for each in runs)]
    bounds = [each for each in highs if each is not None]
    has_all = len(runs) == len(choices)
    verdicts = {found.fits, *(each.fits for each in runs)}
    return replace(
        found,
        otherwise=runs,
        range_bytes=(min(lows), max(bounds) if has_all and len(bounds) == len(highs) else None),
        fits=found.fits if has_all and len(verdicts) == 1 else None,
    )


def _other_run(choice: Choice, answer: ChangedAnswer, outcome: Outcome) -> OtherRun:
    place = (choice.where, choice.what, answer.answer)
    if isinstance(outcome, VramscopeError):
        return OtherRun(*place, None, None, None, None, is_whole=True, problem=str(outcome))
    return OtherRun(
        *place,
        outcome.peak_allocated_bytes,
        outcome.peak_reserved_bytes,
        None if outcome.certainty == "cannot_tell" else outcome.range_bytes[1],
        outcome.fits,
        is_whole=outcome.out_of_memory is None,
        least_allocated_bytes=outcome.range_bytes[0],
    )
