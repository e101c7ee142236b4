"""Why it did not fit, and what would: settings by replay, other cards, other batches, strategies."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.commands import Command
from vramscope.errors import UsageError

if TYPE_CHECKING:
    from vramscope.analysis._cards import Card
    from vramscope.analysis.batch_fit import BatchFit
    from vramscope.analysis.settings_advice import Candidate, SettingsAdvice
    from vramscope.analysis.strategies import Strategies
    from vramscope.analysis.what_if import Outcome
    from vramscope.model.recording import Recording

_UNKNOWN_OUTSIDE = 600 << 20
"""What context and libraries take where the recording does not say: 300 to 600 MiB are usual."""
BASIS = (
    "by replay of the recorded requests: a program that does something else under other settings is not "
    "foreseen, nor is the time that releases and mappings take"
)
_STAGES = ("settings", "cards", "batch", "strategies")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a trace directory, or a file that torch wrote")
    parser.add_argument(
        "--capacity",
        metavar="CARD,…",
        help="cards to ask about, by size or name: 24GiB,40GB,4090,h100 (the recorded one)",
    )
    parser.add_argument("--conf", metavar="TEXT", help="try just this PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument(
        "--fraction", type=float, metavar="F", help="try set_per_process_memory_fraction(F), 0 to 1"
    )
    parser.add_argument(
        "--empty-cache",
        dest="emptied_every",
        choices=("step", "epoch"),
        help="try torch.cuda.empty_cache() after each of them",
    )
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
    from vramscope.commands._fit_page import page
    from vramscope.commands._waiting import waiting
    from vramscope.load import load

    done = _Done()
    try:
        with waiting("reading"):
            loaded = load(args.path)
            recording = _chosen(loaded.recordings, args.rank)
            others = [_chosen(load(path).recordings, args.rank) for path in args.others]
        answer = Answer(recording, others, args, done)
    except KeyboardInterrupt:
        print(f"vramscope: {done.told()}", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(answer.as_json(), indent=2))
    else:
        print_terminal(list(page(answer, loaded.name)))
    return 0


def _chosen(recordings: "tuple[Recording, ...]", rank: int) -> "Recording":
    mine = [recording for recording in recordings if recording.process.rank == rank]
    if not mine:
        known = ", ".join(sorted({str(recording.process.rank) for recording in recordings})) or "none"
        raise UsageError(f"no rank {rank} in it; there is: {known}")
    # Of several devices the one that did most.
    return max(mine, key=lambda recording: len(recording.trace))


class _Done:
    """How far it came, for who stops it."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.n_settings = 0
        self._best: tuple[int, str] | None = None
        self._n_tried = 0

    def add(self, candidate: "Candidate", outcome: "Outcome") -> str:
        """One setting more; the best until now, in words."""
        self._n_tried += 1
        if outcome.fits and (self._best is None or outcome.peak_reserved < self._best[0]):
            self._best = outcome.peak_reserved, candidate.name
        return self._said_best()

    def _said_best(self) -> str:
        from vramscope.units import format_bytes

        return f"best: {self._best[1]}, {format_bytes(self._best[0])}" if self._best else ""

    def told(self) -> str:
        """In one line."""
        found = [*self.stages]
        if self._n_tried and "settings" not in found:
            best = self._said_best()
            found.append(f"{self._n_tried} of {self.n_settings} settings{f' ({best})' if best else ''}")
        missing = [stage for stage in _STAGES if stage not in self.stages]
        return f"stopped; finished: {', '.join(found) or 'nothing'}; not finished: {', '.join(missing)}"


_TOTALS = ("moments_only", "totals_only")
"""Notes of records whose events are no requests."""


class Place(NamedTuple):
    """A device to ask about."""

    label: str
    total_bytes: int


class Answer:
    """Everything that is asked, once."""

    def __init__(
        self, recording: "Recording", others: "list[Recording]", args: Namespace, done: _Done
    ) -> None:
        from vramscope.analysis.settings_advice import outside_bytes
        from vramscope.analysis.strategies import strategies
        from vramscope.analysis.what_if import program_of
        from vramscope.commands._waiting import waiting

        if not len(recording.trace):
            raise UsageError(f"{args.path}: it has no events, so there is nothing to replay")
        if any(note.code in _TOTALS for note in recording.notes):
            raise UsageError(
                f"{args.path}: it tells totals, not single requests, so nothing can be replayed; "
                "`vramscope report` says what it tells"
            )
        self.recording = recording
        known = outside_bytes(recording)
        self.outside_is_known = known is not None
        self.outside = _UNKNOWN_OUTSIDE if known is None else known
        self.places = _places(args.capacity) or _recorded_place(recording)
        self.asked = _asked(args, recording)
        with waiting("reading"):
            self._program = program_of(recording)
        self.settings = None if self.asked else self._search(done)
        self.chosen = self.asked or (
            self.settings.advised.candidate if self.settings and self.settings.advised else None
        )
        """What is tried on every card: what was asked for, or what is advised."""
        done.stages.append("settings")
        with waiting("replaying on other cards"):
            self.cards = [(place, *self._on(place)) for place in self.places]
            self.as_asked = self._as_asked()
            self.smallest = (self._smallest(None), self._smallest(self.chosen) if self.chosen else None)
        """The smallest card that fits, as it is and with what is chosen."""
        done.stages.append("cards")
        with waiting("looking for batches and strategies"):
            self.batch = self._batch(others, args)
            done.stages.append("batch")
            self.strategies = strategies(recording, args.gpus)

    def left_of(self, total_bytes: int) -> int:
        """What the allocator could have of a card."""
        return max(total_bytes - self.outside, 1)

    def _search(self, done: _Done) -> "SettingsAdvice":
        from vramscope.analysis.settings_advice import settings_advice
        from vramscope.commands._crew import crew

        def play(
            trial: "Callable[[Candidate], Outcome]", wanted: "Iterable[Candidate]"
        ) -> "Iterator[Outcome]":
            """On all cores; children inherit the columns instead of being sent them."""
            wanted = list(wanted)
            done.n_settings = len(wanted)
            return crew(trial, wanted, "replaying", done.add)

        total = self.places[0].total_bytes if self.places else None
        room = None if total is None else self.left_of(total)
        return settings_advice(self.recording, room, play, total)

    def _replayed(self, candidate: "Candidate | None", total: int | None) -> "Outcome":
        """On a device of so many bytes, or without limit."""
        from vramscope.analysis.settings_advice import replayed
        from vramscope.analysis.what_if import device_total

        room = None if total is None else self.left_of(total)
        whole = device_total(self.recording, room, total)
        return replayed(self._program, self.recording, (room, whole), candidate)

    def _on(self, place: Place) -> "tuple[Outcome, Outcome | None]":
        """As it is, and with what is chosen. Of the first place the search has both."""
        found = self.settings
        if found is not None and place == self.places[0]:
            return found.base, found.advised.outcome if found.advised else None
        as_it_is = self._replayed(None, place.total_bytes)
        return as_it_is, self._replayed(self.chosen, place.total_bytes) if self.chosen else None

    def _as_asked(self) -> "Outcome | None":
        if self.asked is None:
            return None
        return self.cards[0][2] if self.cards else self._replayed(self.asked, None)

    def _smallest(self, candidate: "Candidate | None") -> "Card | None":
        """Replayed only where the bytes alone do not say it."""
        from vramscope.analysis._cards import CARDS

        free = self._replayed(candidate, None)
        for card in CARDS:
            room = self.left_of(card.total_bytes)
            if free.peak_reserved <= room:
                return card
            if free.peak_allocated <= room and self._replayed(candidate, card.total_bytes).fits:
                return card
        return None

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

    def where(self, outcome: "Outcome") -> str:
        """Of the request that failed, as people know it."""
        from vramscope.analysis._place import place

        if outcome.failed_at is None or outcome.failed_at < 0:
            return "before the first event"
        step, phase = place(self.recording, outcome.failed_at + 1)
        found = f"at event {outcome.failed_at:,}" if step is None else f"at step {step}"
        return f"{found} in {phase.name.lower().replace('_', ' ')}" if phase else found

    # ------------------------------------------------------------------------------ for machines

    def as_json(self) -> dict[str, Any]:
        """Schema 1; fields are only ever added."""
        from vramscope.analysis._cards import BASIS as CARDS_BASIS

        return {
            "schema": 1,
            "rank": self.recording.process.rank,
            "device": self.recording.device.index,
            "outside_bytes": self.outside,
            "outside_is_measured": self.outside_is_known,
            "settings": self._settings_json(),
            "conf": None if self.as_asked is None else self._outcome(self.as_asked),
            "cards": [
                {
                    "card": place.label,
                    "capacity_bytes": place.total_bytes,
                    "as_it_is": self._outcome(plain),
                    "advised": advised and self._outcome(advised),
                }
                for place, plain, advised in self.cards
            ],
            "smallest_card": {
                "as_it_is": _card(self.smallest[0]),
                "advised": _card(self.smallest[1]),
                "basis": CARDS_BASIS,
            },
            "batch": self._batch_json(),
            "strategies": _strategies(self.strategies),
            "basis": BASIS,
        }

    def _settings_json(self) -> dict[str, Any] | None:
        found = self.settings
        if found is None:
            return None
        return {
            "recorded_peak_reserved_bytes": found.recorded_peak,
            "is_reproduced": found.is_reproduced,
            "as_it_is": self._outcome(found.base),
            "trials": [
                {"name": trial.candidate.name, "conf": trial.candidate.conf} | self._outcome(trial.outcome)
                for trial in found.trials
            ],
            "advised": found.advised and found.advised.candidate.name,
            "reason": found.reason,
            "environment": found.environment or None,
            "call": (found.advised and found.advised.candidate.call) or None,
        }

    def _outcome(self, outcome: "Outcome") -> dict[str, Any]:
        return {
            "fits": outcome.fits,
            "capacity_bytes": outcome.capacity_bytes,
            "peak_reserved_bytes": outcome.peak_reserved,
            "peak_allocated_bytes": outcome.peak_allocated,
            "segments": outcome.n_segments,
            "retries": outcome.n_retries,
            "failed_at_event": outcome.failed_at,
            "failed_bytes": outcome.failed_bytes,
            "failed_where": None if outcome.fits else self.where(outcome),
            "in_use_then_bytes": outcome.failed_requested,
        }

    def _batch_json(self) -> dict[str, Any]:
        fit = self.batch
        largest = [(place.total_bytes, fit.fitting(self.left_of(place.total_bytes))) for place in self.places]
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


def _card(card: "Card | None") -> dict[str, Any] | None:
    return None if card is None else {"name": card.label, "total_bytes": card.total_bytes}


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


# ------------------------------------------------------------------------------------ what is asked


def _asked(args: Namespace, recording: "Recording") -> "Candidate | None":
    """The one setting that is to be tried; None where all are."""
    from vramscope.analysis.settings_advice import Candidate
    from vramscope.analysis.what_if import refuse_unknown

    if args.conf is None and args.fraction is None and args.emptied_every is None:
        return None
    if args.fraction is not None and not 0 < args.fraction <= 1:
        raise UsageError(f"--fraction {args.fraction:g}: more than 0, at most 1")
    if args.conf is not None:
        refuse_unknown(args.conf, recording.process.torch)
    conf = str(recording.process.allocator.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    words = [
        args.conf,
        None if args.fraction is None else f"a fraction of {args.fraction:g}",
        args.emptied_every and f"empty_cache() after every {args.emptied_every}",
    ]
    return Candidate(
        " and ".join(filter(None, words)) or "no setting",
        conf if args.conf is None else args.conf,
        0,
        args.emptied_every or "",
        args.fraction,
    )


def _recorded_place(recording: "Recording") -> list[Place]:
    from vramscope.units import format_bytes

    total = recording.device.total_bytes
    return [Place(f"this device of {format_bytes(total)}", total)] if total else []


def _places(text: str | None) -> list[Place]:
    return [_place(part.strip()) for part in text.split(",")] if text else []


def _place(text: str) -> Place:
    """A card by its name, or by the bytes that torch would find on it."""
    from vramscope.analysis._cards import CARDS, card_named
    from vramscope.units import format_bytes, parse_bytes

    card = card_named(text)
    if card is not None:
        return Place(f"the {card.label} ({format_bytes(card.total_bytes)})", card.total_bytes)
    try:
        size = parse_bytes(text)
    except ValueError:
        size = 0
    if not size or text.isdigit():
        known = ", ".join(each.name for each in CARDS)
        raise UsageError(f"--capacity {text!r}: a size such as 24GiB, or a card: {known}")
    return Place(f"a card of {format_bytes(size)}", size)


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
