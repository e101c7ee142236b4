"""Everything that a text says of one rank on one device, in its order, each run of it apart."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from vramscope.formats.log.oom_messages import Message
from vramscope.formats.log.patterns import Amount
from vramscope.formats.log.summaries import SummaryTable
from vramscope.model.counters import UNKNOWN

MOST_ROWS = 1 << 15
"""The samples of a file that are kept; of more, neighbours become one that has the highest of both."""
_KINDS = {"AMD SMI": "hip", "MLX": "mps", "JAX": "unknown", "TensorFlow": "unknown"}
_MOST_RUNS = 64
"""The most runs of a log: more are rather lines of several processes in turn, and count as one run."""


class LogMoment(NamedTuple):
    """When something was printed; −1 and 0 where that is not known."""

    time_ns: int = 0
    step: int = UNKNOWN
    epoch: float = UNKNOWN


class Sample(NamedTuple):
    """What one line says of one device, in bytes by column."""

    moment: LogMoment
    values: Mapping[str, int]
    pid: int = 0
    utilization_percent: int = UNKNOWN


class LoggedSeries(NamedTuple):
    """A series of figures in a text: its column, who printed it, and its name."""

    column: str
    origin: str
    name: str


class PlaceFigures:
    """What one run in a text has of one rank on one device."""

    def __init__(self, rank: int, device: int) -> None:
        self.rank, self.device = rank, device
        self.kind, self.name, self.command = "cuda", "", ""
        self.items: list[Sample | Message | SummaryTable] = []
        self.most: dict[LoggedSeries, int] = {}
        self.others: dict[tuple[int, str], int] = {}
        self.processes: dict[int, PlaceFigures] = {}
        """What the file says of single processes."""
        self.n_samples, self.n_messages, self.most_rows = 0, 0, MOST_ROWS
        self.last, self.stride = LogMoment(), 0
        """The latest step and epoch, and how far apart the last two steps were."""
        self.is_over = False
        """Whether the text says that what follows is another attempt."""
        self.message_pid = 0
        self.number, self.of, self.begins_after = 1, 1, UNKNOWN
        """Which run it is of how many of the same place in the text, and the step before it."""
        self.n_begun = 0
        """How often the steps begin again in what is shown as one run."""
        self._last_message: Message | None = None

    def __bool__(self) -> bool:
        return bool(self.items or self.processes)

    @property
    def has_failed(self) -> bool:
        """Whether the last that it said is an out-of-memory error."""
        return bool(self.items) and isinstance(self.items[-1], Message)

    def reach(self, moment: LogMoment) -> None:
        """Note the step and the epoch of a line."""
        if moment.step > self.last.step >= 0:
            self.stride = moment.step - self.last.step
        step = moment.step if moment.step >= 0 else self.last.step
        epoch = moment.epoch if moment.epoch >= 0 else self.last.epoch
        self.last = LogMoment(moment.time_ns, step, epoch)

    def take(self, other: "PlaceFigures") -> None:
        """Add what another run of the place has."""
        self.items += other.items
        for series, most in other.most.items():
            self.most[series] = max(most, self.most.get(series, 0))
        for (pid, name), n_bytes in other.others.items():
            self.other(pid, name, n_bytes)
        self.processes |= other.processes
        self.n_samples += other.n_samples
        self.reach(other.last)

    def add(self, amounts: Iterable[Amount], moment: LogMoment, pid: int = 0, busy: int = UNKNOWN) -> None:
        """Add the amounts of one line; of several in one column the highest counts."""
        values: dict[str, int] = {}
        for amount in amounts:
            column = amount.wording.column
            values[column] = max(amount.n_bytes, values.get(column, 0))
            series = LoggedSeries(column, amount.wording.origin, amount.name)
            if series in self.most or len(self.most) < 1000:
                self.most[series] = max(amount.n_bytes, self.most.get(series, 0))
            self.kind = _KINDS.get(amount.wording.origin, self.kind)
        if not values and busy < 0:
            return
        last = self.items[-1] if self.items else None
        if isinstance(last, Sample) and _goes_on(last, values, moment, pid):
            step = moment.step if moment.step >= 0 else last.moment.step
            later = LogMoment(moment.time_ns or last.moment.time_ns, step)
            self.items[-1] = last._replace(values={**last.values, **values}, moment=later)
            return
        self.items.append(Sample(moment, values, pid, busy))
        self.n_samples += 1
        self.thin(self.most_rows)

    def process(self, pid: int, name: str) -> "PlaceFigures":
        """Return the place of one process on this device."""
        if pid not in self.processes:
            self.processes[pid] = PlaceFigures(self.rank, self.device)
            self.processes[pid].command = name
        return self.processes[pid]

    def other(self, pid: int, name: str, n_bytes: int) -> None:
        """Note what a process used of the device at most."""
        self.others[pid, name] = max(n_bytes, self.others.get((pid, name), 0))

    def settle(self) -> None:
        """Take the samples of the process that used most as the device's own, and note the others."""
        ordered = sorted(self.processes.items(), key=lambda each: -max(each[1].most.values(), default=0))
        for pid, place in ordered[1:]:
            self.other(pid, place.command, max(place.most.values(), default=0))
        self.processes = {}
        for _, place in ordered[:1]:
            self.command = place.command
            self.take(place)

    def fail(self, message: Message) -> None:
        """Add a message; one that is repeated at once, as in a log and then in the traceback, counts once."""
        self.n_messages += message != self._last_message
        if message != self._last_message and self.n_messages <= MOST_ROWS // 8:
            self.items.append(message)
            self.kind = message.kind
        self._last_message, self.message_pid = message, message.pid or self.message_pid

    def thin(self, most: int) -> None:
        """Make one of every two samples while there are more than *most*."""
        if self.n_samples <= max(most, 512):
            return
        kept: list[Sample | Message | SummaryTable] = []
        for item in self.items:
            last = kept[-1] if kept else None
            if isinstance(item, Sample) and isinstance(last, Sample) and len(kept) % 2:
                both = {**last.values, **item.values}
                values = {name: max(last.values.get(name, 0), item.values.get(name, 0)) for name in both}
                kept[-1] = item._replace(values=values)
                kept.append(Sample(item.moment, {}))
            else:
                kept.append(item)
        self.items = [item for item in kept if not isinstance(item, Sample) or item.values]
        self.n_samples = sum(isinstance(item, Sample) for item in self.items)


def _goes_on(last: Sample, values: Mapping[str, int], moment: LogMoment, pid: int) -> bool:
    """Return whether a line says more of the moment of the line before, as the rows of a table do."""
    if last.values.keys() & values.keys() or last.pid != pid:
        return False
    return moment.step in (last.moment.step, UNKNOWN) or last.moment.step == UNKNOWN


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
