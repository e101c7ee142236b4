"""Will it fit? ``vramscope.predict(train)`` runs a program's own steps dry: no GPU, and nothing computed.

What comes out is an ordinary recording, of source ``predicted``, and an answer about one card.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.errors import CaptureError, UsageError, VramscopeError
from vramscope.model.cards import card_named
from vramscope.units import format_bytes, parse_bytes

# The process that runs the program imports no analysis: it does not need one (0.4 s).
if TYPE_CHECKING:
    from vramscope.model.recording import Recording
    from vramscope.prediction.dry import Predicted
    from vramscope.prediction.dry.cards import Hardware
    from vramscope.prediction.dry.changes import DryChange
    from vramscope.prediction.dry.dry_capture import RanOut
    from vramscope.prediction.dry.values.choices import Choice, Otherwise
    from vramscope.prediction.largest import LargestSize, SizeTrial
    from vramscope.prediction.on_cards import CardRoom, Need, OnCard

DEFAULT_CARD = "H100"
_MOST_OTHERS = 8
"""Runs with one answer changed, each of which takes as long as the first one."""


@dataclass(frozen=True, slots=True)
class OutOfMemoryPoint:
    """The request at which memory runs out, the first time."""

    operator: str
    """The operator that asks, ``aten.linear``; of a backward where the frames end at ``backward()``."""
    frames: tuple[tuple[str, int, str], ...]
    """File, line and function of the program's own frames, innermost first."""
    wanted_bytes: int
    """Size of the request."""
    in_use_bytes: int
    """Allocated bytes at that moment."""
    phase: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A dry run in which one place of the program got another answer than in the first one."""

    where: str
    """The program's line, ``train.py:31``."""
    what: str
    """What the program does there: ``a comparison``, ``a branch``, ``float()``."""
    answer: str
    """``always true``, ``always false``, ``rising`` or ``falling``."""
    peak_allocated_bytes: int | None
    """None where the program cannot be run that way."""
    peak_reserved_bytes: int | None
    most_allocated_bytes: int | None
    """The upper bound of its peak; None where nothing bounds it."""
    fits: bool | None
    is_whole: bool
    """Whether the program went on to the end; False if memory ran out."""
    problem: str = ""
    """Why the program cannot be run that way."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer of one dry run."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """What torch takes from the driver, CUDA's own context not included."""
    phase: str | None
    """The phase of the step at the peak of allocated memory; None outside of every phase."""
    step: int | None
    fits: bool | None
    """None where it is unknown."""
    capacity_bytes: int
    """The card's memory as torch would report it."""
    context_bytes: int
    """The memory that CUDA itself takes, about."""
    card: str
    certainty: str
    """``checked``, ``estimate`` or ``cannot_tell``: then the peaks are lower bounds."""
    range_bytes: tuple[int, int | None]
    """The bounds of the peak of allocated memory; None where there is no upper bound."""
    reasons: tuple[str, ...]
    """Why it is not ``checked``, the gravest first."""
    out_of_memory: str | None
    """The program's line at which memory runs out."""
    run: Path
    """The recording, which every command and page opens."""
    cards: "tuple[OnCard, ...]" = ()
    """The verdict for every known card, the smallest first."""
    out_of_memory_point: OutOfMemoryPoint | None = None
    """The request at which memory runs out."""
    unchanged: str = ""
    """Why a requested change had no effect on the program; '' if it had, or if none was requested."""
    n_blocks: int = 0
    """Blocks of the program's models that can be checkpointed, where a change requested that."""
    ended_after: str = "its end"
    """How far the program was run: to ``its end``, for ``3 steps``."""
    choices: "tuple[Choice, ...]" = ()
    """The places of the program that decide by a value that nobody computed."""
    otherwise: tuple[OtherRun, ...] = ()
    """The same program with each of these places answered otherwise, one at a time."""

    @property
    def need(self) -> "Need":
        """What the program needs on any card, as far as this run and those answered otherwise tell."""
        from vramscope.prediction.on_cards import Need

        low, high = self.range_bytes
        peaks = [(each.peak_allocated_bytes or 0, each.peak_reserved_bytes or 0) for each in self.otherwise]
        allocated, reserved = zip((self.peak_allocated_bytes, self.peak_reserved_bytes), *peaks, strict=True)
        doubt = None
        if high is not None and self.certainty != "cannot_tell":
            doubt = high - low + max(reserved) - min(reserved)
        is_whole = self.out_of_memory is None and all(each.is_whole for each in self.otherwise)
        return Need(min(allocated), min(reserved), doubt, is_whole)

    @property
    def recording(self) -> "Recording":
        """What was predicted, with every analysis as a method."""
        from vramscope.loading import load

        return load(self.run).recordings[0]

    def to_json(self) -> dict[str, Any]:
        """The object that ``vramscope predict --json`` prints."""
        return {
            "schema": 1,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "phase": self.phase,
            "step": self.step,
            "fits": self.fits,
            "capacity_bytes": self.capacity_bytes,
            "certainty": self.certainty,
            "reasons": list(self.reasons),
            "run": str(self.run),
            "card": self.card,
            "context_bytes": self.context_bytes,
            "peak_allocated_range_bytes": list(self.range_bytes),
            "out_of_memory_at": self.out_of_memory,
            "out_of_memory": None if self.out_of_memory_point is None else _point(self.out_of_memory_point),
            "cards": [asdict(each) for each in self.cards],
            "ended_after": self.ended_after,
            "otherwise": [asdict(each) for each in self.otherwise],
        }


def _point(point: OutOfMemoryPoint) -> dict[str, Any]:
    frames = [{"file": file, "line": line, "function": function} for file, line, function in point.frames]
    return asdict(point) | {"frames": frames}


def predict(  # noqa: PLR0913 -- each is an option of the command
    program: Any,
    *,
    inputs: Sequence[Any] | None = None,
    card: str = DEFAULT_CARD,
    capacity: str | int | None = None,
    steps: int | None = 3,
    directory: str | os.PathLike[str] | None = None,
    ranks: int | None = None,
) -> Prediction:
    """Predict how much GPU memory a training needs, without a GPU.

    The program runs as it is, but its tensors have shapes and no content. It may say ``cuda`` as if a card
    were there; torch is as before when it returns. Where it takes a branch by a value that nobody computed
    it is run again for the other branch.

    Parameters
    ----------
    program
        A function without arguments that builds a model and trains it; or a module, which is then trained
        by AdamW on the mean of its outputs.
    inputs
        For a module: its inputs, each an example tensor or the shape of one in float32.
    card
        The card to predict for, by its name: ``"H100"``, ``"A100 40"``, ``"4090"``.
    capacity
        The bytes of the card, as a number or as text (``"24GiB"``), instead of what the card has.
    steps
        The program is stopped after so many optimizer steps; None lets it run to its end.
    directory
        Where the recording goes; without it a new temporary folder.
    ranks
        The number of ranks of a program that runs on several cards: the first of them is predicted, in a
        process group that sends nothing.

    Returns
    -------
    Prediction
        Peaks in bytes, whether they fit, how certain that is and why, and where the recording is.

    Raises
    ------
    UsageError
        The card or the capacity is not known, or a module comes without inputs.
    CaptureError
        torch is missing or too old for a dry run.
    """
    options = DryOptions(steps, ranks)
    run = dry_run(card, capacity, directory, options)
    run.do(_body(program, inputs))
    found = answer(findings(run))
    others: list[tuple[Otherwise, Prediction | VramscopeError]] = []
    for otherwise in to_try(found):
        with tempfile.TemporaryDirectory(prefix="vramscope-") as folder:
            place = Path(folder) / "predicted"
            other = dry_run(card, capacity, place, replace(options, otherwise=otherwise))
            try:
                other.do(_body(program, inputs))
                others.append((otherwise, answer(findings(other))))
            except VramscopeError as error:
                others.append((otherwise, error))
            except Exception as error:  # noqa: BLE001 -- the program's own, as it never went this way
                others.append((otherwise, VramscopeError(f"{type(error).__name__}: {error}")))
    return with_others(found, others)


def to_try(found: Prediction) -> "list[Otherwise]":
    """Return the answers with which the program is run again, at most 8."""
    return [each for choice in found.choices for each in choice.otherwise][:_MOST_OTHERS]


def with_others(
    found: Prediction, others: "Sequence[tuple[Otherwise, Prediction | VramscopeError]]"
) -> Prediction:
    """Return the prediction with the range and the verdict of all runs, each of which changes one answer.

    Parameters
    ----------
    found
        The first run.
    others
        The answer that was changed, and what came of it.
    """
    choices = {each: choice for choice in found.choices for each in choice.otherwise}
    if not choices:
        return found
    runs = tuple(_other_run(choices[otherwise], otherwise, other) for otherwise, other in others)
    low, high = found.range_bytes
    lows = [low, *(each.peak_allocated_bytes for each in runs if each.peak_allocated_bytes is not None)]
    highs = [high, *(each.most_allocated_bytes for each in runs)]
    known = [each for each in highs if each is not None]
    is_bounded = len(known) == len(highs) and len(runs) == len(choices)
    verdicts = {found.fits, *(each.fits for each in runs)}
    found = replace(
        found,
        otherwise=runs,
        range_bytes=(min(lows), max(known) if is_bounded else None),
        fits=found.fits if len(verdicts) == 1 and len(runs) == len(choices) else None,
    )
    return replace(found, cards=on_every_card(found))


def _other_run(choice: "Choice", otherwise: "Otherwise", other: "Prediction | VramscopeError") -> OtherRun:
    place = (choice.where, choice.what, otherwise.answer)
    if isinstance(other, VramscopeError):
        return OtherRun(*place, None, None, None, None, is_whole=True, problem=str(other))
    return OtherRun(
        *place,
        other.peak_allocated_bytes,
        other.peak_reserved_bytes,
        None if other.certainty == "cannot_tell" else other.range_bytes[1],
        other.fits,
        is_whole=other.out_of_memory is None,
    )


@dataclass(frozen=True, slots=True)
class DryOptions:
    """How far a dry run goes, and what it changes."""

    steps: int | None = 3
    """Optimizer steps after which the program is stopped; None lets it run to its end."""
    ranks: int | None = None
    """The number of ranks of a program that runs on several cards."""
    change: "DryChange | None" = None
    otherwise: "Otherwise | None" = None
    """What one place of the program is answered otherwise."""


class DryRun:
    """One dry run of a program; ``do`` runs it, once."""

    def __init__(
        self,
        directory: Path,
        card: "Hardware",
        total_bytes: int,
        options: DryOptions,
    ) -> None:
        self.directory = directory
        self.card = card
        self.total_bytes = total_bytes
        self.unchanged = ""
        self.n_blocks = 0
        self._options = options
        self._capture: Predicted | None = None

    def do(self, body: Callable[[], Any]) -> None:
        """Run *body* to its end, or as far as the steps and the memory go; raises what else it raises."""
        from vramscope.prediction.dry import SOURCE, Enough, OutOfMemoryError, Unknown, plan
        from vramscope.recorder import Recorder, RecorderOptions

        plan.card, plan.capacity_bytes, plan.steps = self.card, self.total_bytes, self._options.steps
        plan.n_ranks, plan.otherwise = self._options.ranks, self._options.otherwise
        options = RecorderOptions(self.directory, "auto", None, 64, None, source=SOURCE)
        recorder = Recorder(options, quiet=True)
        try:
            with recorder:
                self._capture = plan.last
                # A program that is stopped after enough steps has not failed.
                with suppress(Enough):
                    self._run(body)
        except (OutOfMemoryError, *Unknown):
            pass  # what became of it is in the capture
        finally:
            if plan.last is not None:
                plan.last.leave_world()
            plan.card = plan.otherwise = None
            self.directory = recorder.directory

    def _run(self, body: Callable[[], Any]) -> None:
        change = self._options.change
        if change is None:
            body()
            return
        from vramscope.prediction.dry.changes import changed

        with changed(change) as result:
            try:
                body()
            finally:
                self.unchanged, self.n_blocks = result.problem(change), result.n_blocks

    @property
    def capture(self) -> "Predicted":
        """What was recorded; raises CaptureError where the program never began."""
        if self._capture is None:
            raise CaptureError("the program ended before it could be run dry")
        return self._capture

    @property
    def fits(self) -> bool | None:
        """Whether the card has room for what is reserved at most; None where it is unknown."""
        capture = self.capture
        if capture.ran_out_at is not None:
            return False
        low, high = capture.range_bytes
        if capture.certainty == "cannot_tell" or high is None:
            return None
        room = self.total_bytes - self.card.context_bytes
        return True if capture.peaks["reserved"] + high - low <= room else None


def dry_run(
    card: str, capacity: str | int | None, directory: str | os.PathLike[str] | None, options: DryOptions
) -> DryRun:
    """A dry run that can be started; raises as ``predict``."""
    if importlib.util.find_spec("torch") is None:
        raise CaptureError('a dry run needs torch: pip install "vramscope[torch]"')
    if options.steps is not None and options.steps < 1:
        raise UsageError("steps: at least 1")
    if options.ranks is not None and options.ranks < 1:
        raise UsageError("ranks: at least 1")
    hardware, total_bytes = card_of(card, capacity)
    place = (
        Path(tempfile.mkdtemp(prefix="vramscope-")) / "predicted" if directory is None else Path(directory)
    )
    return DryRun(place.absolute(), hardware, total_bytes, options)


def card_of(name: str, capacity: str | int | None) -> tuple["Hardware", int]:
    """The card that the words name, and its bytes or those of *capacity*; raises UsageError."""
    from vramscope.prediction.dry.cards import HARDWARE, words

    asked = words(name)
    hardware = next((one for one in HARDWARE if asked and asked <= words(one.name)), None)
    known = None if hardware is None else card_named(hardware.name)
    if hardware is None or known is None:
        raise UsageError(f"no card {name!r}; there is: {', '.join(one.name for one in HARDWARE)}")
    try:
        return hardware, known.total_bytes if capacity is None else parse_bytes(capacity)
    except ValueError as error:
        raise UsageError(f"capacity: {error}") from None


def _body(program: Any, inputs: Sequence[Any] | None) -> Callable[[], Any]:
    if not hasattr(program, "named_parameters"):
        if inputs is not None:
            raise UsageError("inputs go with a module; a function makes its own")
        body: Callable[[], Any] = program
        return body
    if inputs is None:
        raise UsageError("a module needs inputs: predict(model, inputs=[(8, 3, 224, 224)])")
    from vramscope.prediction.dry.module import training_of

    return training_of(program, inputs)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a dry run alone knows; ``answer`` adds what follows from its recording."""

    peaks: Mapping[str, int]
    """Bytes by quantity, of the whole run."""
    range_bytes: tuple[int, int | None]
    certainty: str
    reasons: tuple[str, ...]
    fits: bool | None
    capacity_bytes: int
    card: "Hardware"
    ran_out_at: str | None
    ran_out: "RanOut | None"
    directory: Path
    unchanged: str
    n_blocks: int
    choices: "tuple[Choice, ...]"
    ended_after: str


def findings(run: DryRun) -> Findings:
    """Return what is known of a dry run that is over, for another process to answer with.

    Raises
    ------
    CaptureError
        The program waited for ever for another answer than it got.
    """
    capture = run.capture
    if capture.is_endless:
        raise CaptureError("the program does not go on with this answer")
    return Findings(
        peaks=capture.peaks,
        range_bytes=capture.range_bytes,
        certainty=capture.certainty,
        reasons=capture.reasons,
        fits=run.fits,
        capacity_bytes=run.total_bytes,
        card=run.card,
        ran_out_at=capture.ran_out_at,
        ran_out=capture.ran_out,
        directory=run.directory,
        unchanged=run.unchanged,
        n_blocks=run.n_blocks,
        choices=capture.choices,
        ended_after=capture.ended_after,
    )


def answer(found: Findings) -> Prediction:
    """Return the prediction of a dry run, with what its recording says."""
    from vramscope.loading import load

    recording = load(found.directory).recordings[0]
    peak = recording.peak().allocated
    prediction = Prediction(
        peak_allocated_bytes=found.peaks["allocated"],
        peak_reserved_bytes=found.peaks["reserved"],
        phase=None if peak.phase is None else peak.phase.name.lower(),
        step=peak.step,
        fits=found.fits,
        capacity_bytes=found.capacity_bytes,
        context_bytes=found.card.context_bytes,
        card=found.card.name,
        certainty=found.certainty,
        range_bytes=found.range_bytes,
        reasons=found.reasons,
        out_of_memory=found.ran_out_at,
        run=found.directory,
        out_of_memory_point=_ran_out(found.ran_out, recording),
        unchanged=found.unchanged,
        n_blocks=found.n_blocks,
        choices=found.choices,
        ended_after=found.ended_after,
    )
    return replace(prediction, cards=on_every_card(prediction))


def _ran_out(point: "RanOut | None", recording: "Recording") -> OutOfMemoryPoint | None:
    from vramscope.analysis.step_and_phase import step_and_phase_at
    from vramscope.model.marks import MarkKind

    if point is None:
        return None
    event = int(recording.marks.event[recording.marks.kind == MarkKind.OOM][0])
    step, phase = step_and_phase_at(recording, event)
    return OutOfMemoryPoint(*point, None if phase is None else phase.name.lower(), step)


def known_cards() -> "tuple[CardRoom, ...]":
    """Every card for which a program can be run dry, the smallest first."""
    from vramscope.prediction.dry.cards import HARDWARE
    from vramscope.prediction.on_cards import CardRoom

    known = [(each, card_named(each.name)) for each in HARDWARE]
    return tuple(
        CardRoom(each.name, card.total_bytes, each.context_bytes, each.capability)
        for each, card in known
        if card is not None
    )


def on_every_card(found: Prediction) -> "tuple[OnCard, ...]":
    """The verdict for every known card, as far as one dry run decides it."""
    from vramscope.prediction.on_cards import on_cards

    cards = known_cards()
    own = next(each for each in cards if each.name == found.card)
    # With --capacity the card as it is sold is one of the others.
    return on_cards(found.need, replace(own, total_bytes=found.capacity_bytes), found.fits, cards)


def room_of(card: str, capacity: str | int | None) -> "CardRoom":
    """The card that the words name, with the capacity instead of its own; raises UsageError."""
    from vramscope.prediction.on_cards import CardRoom

    hardware, total_bytes = card_of(card, capacity)
    return CardRoom(hardware.name, total_bytes, hardware.context_bytes, hardware.capability)


def predict_largest(
    program: Callable[[int], Any],
    *,
    start: int = 1,
    card: str = DEFAULT_CARD,
    capacity: str | int | None = None,
    steps: int | None = 3,
) -> "LargestSize":
    """Search the largest batch, or the longest sequence, with which a training fits a card, without a GPU.

    Parameters
    ----------
    program
        A function of one size that builds a model and trains it.
    start
        The first size to try: at least 1.
    card, capacity, steps
        As in ``predict``.

    Returns
    -------
    LargestSize
        ``fitting`` is the largest size that fits, ``trials`` every dry run with its reserved bytes.

    Raises
    ------
    UsageError
        The card, the capacity or the first size is impossible.
    """
    from vramscope.prediction.largest import SizeTrial, search_largest

    if start < 1:
        raise UsageError("start: at least 1")
    room = room_of(card, capacity)

    def trial(size: int) -> "SizeTrial":
        # A search runs ten sizes and more, 2 MB each, and only their figures are asked for.
        with tempfile.TemporaryDirectory(prefix="vramscope-") as folder:
            found = predict(
                lambda: program(size),
                card=card,
                capacity=capacity,
                steps=steps,
                directory=Path(folder) / "predicted",
            )
        return SizeTrial(size, found.fits, found.peak_reserved_bytes)

    return search_largest(start, room.room_bytes, trial, lambda _: None)


def sentence(found: Prediction, whole: Prediction | None = None) -> str:
    """The answer as one line; *whole* is the same program on a card without a limit, where memory ran out."""
    verdict = {True: "fits on", False: "does not fit on", None: "may or may not fit on"}[found.fits]
    of = whole or found
    allocated, reserved = format_bytes(of.peak_allocated_bytes), format_bytes(of.peak_reserved_bytes)
    peak = f"{allocated} allocated, {reserved} reserved"
    at_least = "at least " if of.certainty == "cannot_tell" or of.out_of_memory is not None else ""
    needs = "it needs " if whole is not None else ""
    card = f"the {found.card} ({format_bytes(found.capacity_bytes)})"
    return f"{verdict} {card}: {needs}{at_least}{peak}"
