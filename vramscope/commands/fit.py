"""Why it did not fit, and what would: settings by replay, other cards, other batches, strategies."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vramscope.commands import Command
from vramscope.errors import UsageError

if TYPE_CHECKING:
    from vramscope.analysis.batch_fit import BatchFit
    from vramscope.analysis.settings_advice import Candidate, SettingsAdvice
    from vramscope.analysis.strategies import Strategies
    from vramscope.analysis.what_if import Outcome
    from vramscope.commands._document import Block
    from vramscope.model.recording import Recording

_UNKNOWN_OUTSIDE = 600 << 20
"""What context and libraries take where the recording does not say: 300 to 600 MiB are usual."""
_BASIS = (
    "by replay of the recorded requests: a program that does something else under other settings is not "
    "foreseen, nor is the time that releases and mappings take"
)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a trace directory, or a file that torch wrote")
    parser.add_argument(
        "--capacity", metavar="SIZE,…", help="cards to ask about, for example 24GiB,40GiB (the recorded one)"
    )
    parser.add_argument("--conf", metavar="TEXT", help="try just this PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument(
        "--batch",
        metavar="N,…",
        help="batch size of each step, or one for all: what other sizes would need",
    )
    parser.add_argument(
        "--with", dest="others", metavar="RUN", action="append", default=[], help="a run with another batch"
    )
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="for what shards (8)")
    parser.add_argument("--rank", type=int, default=0, help="which rank (0)")
    parser.add_argument("--json", action="store_true", help="one object, for machines")


def run(args: Namespace) -> int:
    import json

    from vramscope.commands._document import print_terminal
    from vramscope.load import load

    loaded = load(args.path)
    recording = _chosen(loaded.recordings, args.rank)
    others = [_chosen(load(path).recordings, args.rank) for path in args.others]
    answer = _Answer(recording, others, args)
    if args.json:
        print(json.dumps(answer.as_json(), indent=2))
    else:
        print_terminal(list(answer.page(loaded.name)))
    return 0


def _chosen(recordings: "tuple[Recording, ...]", rank: int) -> "Recording":
    mine = [recording for recording in recordings if recording.process.rank == rank]
    if not mine:
        known = ", ".join(sorted({str(recording.process.rank) for recording in recordings})) or "none"
        raise UsageError(f"no rank {rank} in it; there is: {known}")
    # Of several devices the one that did most.
    return max(mine, key=lambda recording: len(recording.trace))


_TOTALS = ("moments_only", "totals_only")
"""Notes of records whose events are no requests."""


class _Answer:
    """Everything that is asked, once."""

    def __init__(self, recording: "Recording", others: "list[Recording]", args: Namespace) -> None:
        from vramscope.analysis.settings_advice import outside_bytes
        from vramscope.analysis.strategies import strategies

        if not len(recording.trace):
            raise UsageError(f"{args.path}: it has no events, so there is nothing to replay")
        if any(note.code in _TOTALS for note in recording.notes):
            raise UsageError(f"{args.path}: it tells totals, not single requests, so nothing can be replayed")
        self.recording = recording
        known = outside_bytes(recording)
        self.outside_is_known = known is not None
        self.outside = _UNKNOWN_OUTSIDE if known is None else known
        self.capacities = _sizes(args.capacity) or _recorded_capacity(recording)
        self.only = self._only(args.conf)
        self.settings = None if self.only else self._settings()
        self.cards = [(size, *self._on_card(size)) for size in self.capacities]
        self.batch = self._batch(others, args)
        self.strategies = strategies(recording, args.gpus)

    def _only(self, conf: str | None) -> "Outcome | None":
        from vramscope.analysis.what_if import what_if

        return None if conf is None else what_if(self.recording, conf, self._for_torch())

    def _for_torch(self) -> int | None:
        """What the allocator could have of the first card; None where no card is known."""
        return self._left_of(self.capacities[0]) if self.capacities else None

    def _left_of(self, capacity: int) -> int:
        return max(capacity - self.outside, 1)

    def _settings(self) -> "SettingsAdvice":
        from vramscope.analysis.settings_advice import settings_advice

        return settings_advice(self.recording, self._for_torch(), _in_parallel)

    def _on_card(self, capacity: int) -> "tuple[Outcome, Outcome | None]":
        """As it is, and with the setting that is advised."""
        from vramscope.analysis.what_if import what_if

        room = self._left_of(capacity)
        advised = self.settings.advised if self.settings else None
        as_it_is = what_if(self.recording, None, room)
        if advised is None:
            return as_it_is, None
        conf, after = advised.candidate.conf, advised.candidate.empty_cache_after
        return as_it_is, what_if(self.recording, conf, room, empty_cache_after=after)

    def _batch(self, others: "list[Recording]", args: Namespace) -> "BatchFit":
        from vramscope.analysis.batch_fit import batch_fit

        if args.batch is None:
            return batch_fit(self.recording, others)
        told = [_numbers(part) for part in args.batch.split(";")]
        if len(told) != 1 + len(others):
            raise UsageError("--batch: sizes of one run after the other, with a semicolon between runs")
        for sizes, recording in zip(told, [self.recording, *others], strict=True):
            if len(sizes) not in (1, len(recording.steps)):
                raise UsageError(f"--batch: {len(sizes)} sizes for {len(recording.steps)} steps; or give one")
        return batch_fit(self.recording, others, told)

    # ------------------------------------------------------------------------------ for machines

    def as_json(self) -> dict[str, Any]:
        """Schema 1; fields are only ever added."""
        return {
            "schema": 1,
            "rank": self.recording.process.rank,
            "device": self.recording.device.index,
            "outside_bytes": self.outside,
            "outside_is_measured": self.outside_is_known,
            "settings": self._settings_json(),
            "conf": None if self.only is None else _outcome(self.only),
            "cards": [
                {
                    "capacity_bytes": size,
                    "as_it_is": _outcome(plain),
                    "advised": advised and _outcome(advised),
                }
                for size, plain, advised in self.cards
            ],
            "batch": self._batch_json(),
            "strategies": _strategies(self.strategies),
            "basis": _BASIS,
        }

    def _settings_json(self) -> dict[str, Any] | None:
        found = self.settings
        if found is None:
            return None
        return {
            "recorded_peak_reserved_bytes": found.recorded_peak,
            "is_reproduced": found.is_reproduced,
            "as_it_is": _outcome(found.base),
            "trials": [
                {"name": trial.candidate.name, "conf": trial.candidate.conf} | _outcome(trial.outcome)
                for trial in found.trials
            ],
            "advised": found.advised and found.advised.candidate.name,
            "reason": found.reason,
            "environment": found.environment or None,
        }

    def _batch_json(self) -> dict[str, Any]:
        fit = self.batch
        largest = [(size, fit.fitting(self._left_of(size))) for size in self.capacities]
        return {
            "unit": fit.unit,
            "sizes": list(fit.sizes),
            "steps": fit.n_steps,
            "basis": fit.basis,
            "error_bytes": fit.error_bytes,
            "problem": fit.problem or None,
            "largest": [
                {"capacity_bytes": size, "size": each.size, "is_limited_by_data": each.is_limited_by_data}
                for size, each in largest
                if each is not None
            ],
        }

    # -------------------------------------------------------------------------------- for people

    def page(self, name: str) -> "Iterator[Block]":
        from vramscope.commands._document import Heading, Text
        from vramscope.units import format_bytes

        yield Heading(f"{name}: what would fit", level=1)
        how = "measured" if self.outside_is_known else "assumed: the recording does not say"
        yield Text(
            f"{format_bytes(self.outside)} of a card outside of the allocator ({how}); {_BASIS}", "quiet"
        )
        if self._ended_short():
            text = "it ends with an allocation that failed: what would have come after it is not known"
            yield Text(text, "note")
        yield from self._settings_page()
        yield from self._cards_page()
        yield from self._batch_page()
        yield from _strategies_page(self.strategies)

    def _ended_short(self) -> bool:
        """Whether nothing was allocated any more after the last allocation that failed."""
        from vramscope.model.trace import Action

        action = self.recording.trace.action
        failed, made = (mask.nonzero()[0] for mask in (action == Action.OOM, action == Action.ALLOC))
        return bool(len(failed)) and (not len(made) or int(failed[-1]) > int(made[-1]))

    def _settings_page(self) -> "Iterator[Block]":
        from vramscope.commands._document import Grid, Heading, Text
        from vramscope.units import format_bytes

        yield Heading("Settings of the allocator", level=3)
        found = self.settings
        if found is None:
            assert self.only is not None  # noqa: S101 - for the type checker
            yield Grid(_HEADER, (_row("as asked", self.only),), "lrrrl")
            return
        yield Text(found.reason)
        if found.environment:
            yield Text(f"set before the program starts: {found.environment}")
        if not found.is_reproduced:
            recorded = format_bytes(found.recorded_peak)
            text = f"an estimate: under the recorded settings the replay does not come to {recorded}"
            yield Text(text, "note")
        rows = [_row("as it is", found.base)]
        rows += [_row(trial.candidate.name, trial.outcome) for trial in found.trials]
        yield Grid(_HEADER, tuple(rows), "lrrrl")

    def _cards_page(self) -> "Iterator[Block]":
        from vramscope.commands._document import Grid, Heading
        from vramscope.units import format_bytes

        if not self.cards:
            return
        yield Heading("On a card of", level=3)
        rows = []
        for size, plain, advised in self.cards:
            rows.append(_row(format_bytes(size), plain))
            if advised is not None and self.settings is not None and self.settings.advised is not None:
                rows.append(_row(f"{format_bytes(size)}, {self.settings.advised.candidate.name}", advised))
        yield Grid(_HEADER, tuple(rows), "lrrrl")

    def _batch_page(self) -> "Iterator[Block]":
        from vramscope.commands._document import Grid, Heading, Text
        from vramscope.units import format_bytes

        fit = self.batch
        yield Heading("Another batch", level=3)
        if fit.problem:
            yield Text(fit.problem, "quiet" if fit.model is None else "note")
        if fit.model is None:
            return
        sizes = sorted({*fit.sizes, 2 * fit.sizes[-1], fit.largest})
        found = [(size, fit.at(size)) for size in sizes]
        rows = tuple(
            (
                f"{size:,}" + (" (seen)" if size in fit.sizes else ""),
                format_bytes(each.likely),
                f"± {format_bytes(each.high - each.likely)}",
                "" if each.reserved is None else format_bytes(each.reserved),
                each.phase.name.lower(),
            )
            for size, each in found
            if each is not None
        )
        yield Grid((fit.unit, "peak allocated", "", "reserved", "in"), rows, "rrrrl")
        for size in self.capacities:
            yield Text(self._largest(size))

    def _largest(self, capacity: int) -> str:
        from vramscope.units import format_bytes

        largest = self.batch.fitting(self._left_of(capacity))
        card = f"on a card of {format_bytes(capacity)}"
        if largest is None or not largest.size:
            return f"{card} not even the smallest size fits"
        at_least = "at least " if largest.is_limited_by_data else ""
        why = (
            ": the data carry no further" if largest.is_limited_by_data else ", if nothing is lost to pieces"
        )
        return f"{card} fits {at_least}{largest.size:,} ({self.batch.unit}){why}"


_HEADER = ("", "peak reserved", "segments", "retries", "")


def _row(name: str, outcome: "Outcome") -> tuple[str, ...]:
    from vramscope.units import format_bytes

    end = "fits"
    if not outcome.fits:
        at = "before the first event" if outcome.failed_at == -1 else f"at event {outcome.failed_at:,}"
        end = f"out of memory {at}, asked for {format_bytes(outcome.failed_bytes)}"
    return name, format_bytes(outcome.peak_reserved), f"{outcome.n_segments:,}", f"{outcome.n_retries:,}", end


def _outcome(outcome: "Outcome") -> dict[str, Any]:
    return {
        "fits": outcome.fits,
        "capacity_bytes": outcome.capacity_bytes,
        "peak_reserved_bytes": outcome.peak_reserved,
        "peak_allocated_bytes": outcome.peak_allocated,
        "segments": outcome.n_segments,
        "retries": outcome.n_retries,
        "failed_at_event": outcome.failed_at,
        "failed_bytes": outcome.failed_bytes,
    }


def _strategies(found: "Strategies") -> dict[str, Any]:
    advised = [asdict(each) | {"phase": each.phase.name.lower()} for each in found.advised]
    return {
        "peak_bytes": found.peak_bytes,
        "phase": found.phase.name.lower(),
        "unknown_bytes": found.unknown_bytes,
        "advised": advised,
        "without_effect": list(found.without_effect),
        "by_phase": found.by_phase,
        "path": found.path or None,
    }


def _strategies_page(found: "Strategies") -> "Iterator[Block]":
    from vramscope.commands._document import Grid, Heading, Text
    from vramscope.units import format_bytes

    phase = found.phase.name.lower().replace("_", " ")
    place = f" in {phase}" if found.phase else ""
    yield Heading(f"What else would lower the peak of {format_bytes(found.peak_bytes)}{place}", level=3)
    if not found.advised:
        known = found.unknown_bytes < found.peak_bytes
        yield Text(
            "nothing that was tried" if known else "no categories are known, so nothing can be tried", "quiet"
        )
        return
    rows = tuple(
        (f"−{format_bytes(each.saved_bytes)}", format_bytes(each.peak_bytes), each.name, each.how, each.basis)
        for each in found.advised
    )
    yield Grid(("saves", "leaves", "", "how", "basis"), rows, "rrlll")
    if found.path:
        yield Text(found.path)
    if found.without_effect:
        yield Text(f"no effect on the peak: {', '.join(found.without_effect)}", "quiet")


def _in_parallel(
    trial: "Callable[[Candidate], Outcome]", wanted: "Iterable[Candidate]"
) -> "Iterator[Outcome]":
    """On all cores, with a bar for a person; children inherit the columns instead of being sent them."""
    from vramscope.commands._crew import crew

    wanted = list(wanted)
    return crew(trial, wanted, "replaying")


def _recorded_capacity(recording: "Recording") -> list[int]:
    return [recording.device.total_bytes] if recording.device.total_bytes else []


def _sizes(text: str | None) -> list[int]:
    from vramscope.units import parse_bytes

    try:
        return [parse_bytes(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise UsageError(f"--capacity: {error}") from None


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch {text!r}: whole numbers, separated by commas") from None
    if min(found) < 1:
        raise UsageError("--batch: sizes are at least 1")
    return found


COMMAND = Command(
    "fit", "what would fit: settings by replay, other cards, batches, strategies", arguments, run
)
