"""Explains why a run did not fit, and finds what would: settings by replay, cards, batches, strategies."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramscope.commands import described
from vramscope.commands._crew import crew, progress, waiting
from vramscope.commands._document import print_answer
from vramscope.errors import UsageError
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.analysis.fit.answer import FitAnswer, Reruns, Target
    from vramscope.analysis.settings_advice import Candidate
    from vramscope.analysis.what_if import ReplayResult
    from vramscope.model.recording import Recording

_STAGES = ("batch", "strategies", "settings", "cards")


def run(args: Namespace) -> int:
    """Print what would fit; return the exit code."""
    from vramscope.analysis.fit import FitProgress, fit_all, fullest_first
    from vramscope.commands._fit_json import as_json
    from vramscope.commands._fit_page import page
    from vramscope.commands._pairs import chosen
    from vramscope.loading import load

    done = _Done()
    try:
        with waiting("reading"):
            loaded = load(args.path)
            recordings = fullest_first(list(chosen(loaded, args.rank, args.device)))
            if not recordings:
                raise UsageError(f"{args.path}: it has no recordings")
            others = [_alike(load(path).recordings, recordings[0]) for path in args.others]
        question = _question(args, recordings[0], others)
        answers = list(fit_all(recordings, question, FitProgress(done.begin, done.play)))
        if args.rerun is not None and not answers[0].problem:
            done.begin("what-ifs")
            answers[0] = _rerun(answers[0], recordings[0], args.rerun, args.gpus)
        done.begin("")
    except KeyboardInterrupt:
        print(f"vramscope: {done.report()}", file=sys.stderr)
        return 130
    if answers[0].problem:
        raise UsageError(f"{args.path}: {answers[0].problem}")
    return print_answer(args, lambda: as_json(answers), page(answers, loaded.name))


def _rerun(answer: "FitAnswer", recording: "Recording", command: str, n_gpus: int) -> "FitAnswer":
    """Return the answer with what-ifs that were run dry: after Ctrl-C those that were over by then."""
    from vramscope.prediction.what_ifs import rerun

    latest: list[Reruns] = []
    target = answer.placed[0].target if answer.placed else None

    def note(reruns: "Reruns", text: str) -> None:
        latest.append(reruns)
        progress(text)

    try:
        latest.append(rerun(recording, command or None, target, n_gpus, note))
    except KeyboardInterrupt:
        if not latest:
            raise
        print("vramscope: stopped; what was run dry by then is shown", file=sys.stderr)
    return replace(answer, reruns=latest[-1])


def _alike(recordings: "tuple[Recording, ...]", like: "Recording") -> "Recording":
    from vramscope.analysis.fit import fullest_first

    if not recordings:
        raise UsageError("--with: a run without recordings")
    wanted = like.process.rank, like.device.index
    same = [each for each in recordings if (each.process.rank, each.device.index) == wanted]
    return (same or fullest_first(recordings))[0]


class _Done:
    """Counts the progress of the search, for the message after Ctrl-C."""

    def __init__(self) -> None:
        self._stages: list[str] = []
        self._begun = ""
        self._n_settings = 0
        self._best: tuple[int, str] | None = None
        self._n_tried = 0

    def begin(self, stage: str) -> None:
        if self._begun in _STAGES and self._begun not in self._stages:
            self._stages.append(self._begun)
        self._begun = stage

    def play(
        self, trial: "Callable[[Candidate], ReplayResult]", wanted: "Iterable[Candidate]"
    ) -> "Iterator[ReplayResult]":
        """Try settings on all cores; children inherit the columns instead of receiving them."""
        wanted = list(wanted)
        self._n_settings = len(wanted)
        return crew(trial, wanted, "replaying", self._add)

    def _add(self, candidate: "Candidate", outcome: "ReplayResult") -> str:
        self._n_tried += 1
        if outcome.fits and (self._best is None or outcome.peak_reserved_bytes < self._best[0]):
            self._best = outcome.peak_reserved_bytes, candidate.name
        return self._best_words()

    def _best_words(self) -> str:
        return f"best: {self._best[1]}, {format_bytes(self._best[0])}" if self._best else ""

    def report(self) -> str:
        found = [*self._stages]
        if self._n_tried and "settings" not in found:
            best = self._best_words()
            found.append(f"{self._n_tried} of {self._n_settings} settings{f' ({best})' if best else ''}")
        missing = [stage for stage in _STAGES if stage not in self._stages]
        return f"stopped; finished: {', '.join(found) or 'nothing'}; not finished: {', '.join(missing)}"


def _question(args: Namespace, recording: "Recording", others: "list[Recording]") -> Any:
    from vramscope.analysis.fit import Question, checked_sizes

    sizes = None
    if args.batch is not None:
        sizes = tuple(tuple(_numbers(part)) for part in args.batch.split(";"))
        checked_sizes(sizes, [recording, *others])
    return Question(
        targets=tuple(_target(part.strip()) for part in (args.capacity or "").split(",") if args.capacity),
        setting=_asked(args, recording),
        others=tuple(others),
        batch_sizes=sizes,
        n_gpus=args.gpus,
    )


def _asked(args: Namespace, recording: "Recording") -> "Candidate | None":
    """Return the one setting that is to be tried; None where all are."""
    from vramscope.analysis.settings_advice import Candidate
    from vramscope.analysis.what_if.configuration_keys import refuse_unknown

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


def _target(text: str) -> "Target":
    """Return a card by its name, or by the bytes that torch would find on it."""
    from vramscope.analysis.fit.answer import Target
    from vramscope.model.cards import CARDS, OWNED, card_named, names_near

    # 4090 is a card; 24 would be the size of one, and is a size without its unit.
    card = None if text.isdecimal() and len(text) < 4 else card_named(text)
    if card is not None:
        return Target(f"the {card.label} ({format_bytes(card.total_bytes)})", card.total_bytes)
    try:
        size = parse_bytes(text)
    except ValueError as error:
        known = [each.name for each in (*CARDS, *OWNED)]
        near = ", ".join(names_near(text, known) or known)
        raise UsageError(f"--capacity: {error}; or a card: {near}") from None
    if not size:
        raise UsageError("--capacity: above 0")
    return Target(f"a card of {format_bytes(size)}", size)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch {text!r}: whole numbers, separated by commas") from None
    if min(found) < 1:
        raise UsageError("--batch: sizes are at least 1")
    return found


COMMAND = described("fit", run)
