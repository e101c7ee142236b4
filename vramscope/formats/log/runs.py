"""Tells the runs in a text apart: restarts after a failure, and programs one after another."""

from itertools import pairwise

from vramscope.formats.log.oom_messages import Message
from vramscope.formats.log.places import LogMoment, PlaceFigures
from vramscope.model.counters import UNKNOWN

_MOST_RUNS = 64
"""The most runs of a log: more are rather lines of several processes in turn, and count as one run."""


class RunsAtPlace:
    """The runs of one rank on one device, in the order of the text."""

    def __init__(self, rank: int, device: int) -> None:
        self._key = rank, device
        self.runs = [PlaceFigures(rank, device)]
        self._is_one = False

    def at(self, moment: LogMoment) -> PlaceFigures:
        """Return the run that a line of that moment belongs to: a new one where the steps begin again."""
        last = self.runs[-1]
        if self._continues_before(moment):
            self.runs[-2:] = [joined(self.runs[-2:])]
        elif not self._is_one and _begins(last, moment):
            self._begin()
        self.runs[-1].reach(moment)
        return self.runs[-1]

    def fail(self, message: Message) -> None:
        """Add a message; one of another process is of another run."""
        if 0 < self.runs[-1].message_pid != message.pid > 0 and not self._is_one:
            self._begin()
        self.runs[-1].fail(message)

    def _begin(self) -> None:
        for run in self.runs:
            run.thin(self.runs[-1].most_rows // len(self.runs))
        self.runs.append(PlaceFigures(*self._key))
        if len(self.runs) > _MOST_RUNS:
            self._is_one, self.runs = True, [joined(self.runs)]

    def _continues_before(self, moment: LogMoment) -> bool:
        """Return whether the run before the last goes on, as after an evaluation with steps of its own."""
        if len(self.runs) < 2 or self.runs[-2].is_over:
            return False
        before, last = self.runs[-2:]
        missed = before.last.step - last.last.step
        return last.last.step < before.last.step < moment.step and missed >= before.stride > 0

    def settled(self) -> list[PlaceFigures]:
        """Return the runs; one where its steps only begin again, as with each epoch or process."""
        runs = [run for run in self.runs if run]
        are_known = any(run.is_over or run.message_pid for run in runs)
        are_equal = len({run.last.step for run in runs[:-1]}) == 1
        are_mixed = sum(run.n_samples for run in runs) < 3 * len(runs)
        if self._is_one or (len(runs) > 2 and not are_known and (are_equal or are_mixed)):
            whole = joined(runs)
            whole.n_begun = max(len(runs), 2)
            return [whole]
        for place, (before, run) in enumerate(pairwise(runs), 2):
            run.number, run.begins_after = place, before.last.step
        for run in runs:
            run.of = len(runs)
        return runs


def _begins(last: PlaceFigures, moment: LogMoment) -> bool:
    """Return whether a line of that moment begins another run than the one with the steps until *last*."""
    if last.is_over:
        return bool(last)
    before = last.last
    if UNKNOWN not in (before.epoch, moment.epoch) and before.epoch != moment.epoch:
        return moment.epoch < before.epoch
    if moment.step == before.step:
        return moment.step != UNKNOWN and last.has_failed
    return UNKNOWN < moment.step < before.step


def joined(runs: list[PlaceFigures]) -> PlaceFigures:
    """Return the first of *runs* with what the others have."""
    first, *others = runs
    for run in others:
        first.take(run)
    return first
