"""Will it fit? ``vramscope.predict(train)`` runs a program's own steps dry: no GPU, and nothing computed.

What comes out is an ordinary recording, of source ``predicted``, and an answer about one card.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.analysis.fit.largest import LargestSize, SizeTrial, search_largest
from vramscope.analysis.fit.on_cards import CardRoom, Need, OnCard, on_cards
from vramscope.errors import CaptureError, UsageError
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.capture.predicted import Predicted
    from vramscope.capture.predicted.cards import Hardware
    from vramscope.capture.predicted.changes import DryChange
    from vramscope.model.recording import Recording

DEFAULT_CARD = "H100"


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
    cards: tuple[OnCard, ...] = ()
    """The verdict for every known card, the smallest first."""
    out_of_memory_point: OutOfMemoryPoint | None = None
    """The request at which memory runs out."""
    unchanged: str = ""
    """Why a requested change had no effect on the program; '' if it had, or if none was requested."""
    n_blocks: int = 0
    """Blocks of the program's models that can be checkpointed, where a change requested that."""

    @property
    def need(self) -> Need:
        """What the program needs on any card, as far as this run tells."""
        low, high = self.range_bytes
        doubt = None if high is None or self.certainty == "cannot_tell" else high - low
        is_whole = self.out_of_memory is None
        return Need(self.peak_allocated_bytes, self.peak_reserved_bytes, doubt, is_whole)

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
    were there; torch is as before when it returns.

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
    run = dry_run(card, capacity, steps, directory, ranks)
    run.do(_body(program, inputs))
    return answer(run)


class DryRun:
    """One dry run of a program; ``do`` runs it, once."""

    def __init__(
        self,
        directory: Path,
        card: "Hardware",
        total_bytes: int,
        steps: int | None,
        ranks: int | None = None,
        change: "DryChange | None" = None,
    ) -> None:
        self.directory = directory
        self.card = card
        self.total_bytes = total_bytes
        self.unchanged = ""
        self.n_blocks = 0
        self._steps = steps
        self._ranks = ranks
        self._change = change
        self._capture: Predicted | None = None

    def do(self, body: Callable[[], Any]) -> None:
        """Run *body* to its end, or as far as the steps and the memory go; raises what else it raises."""
        from vramscope.capture.predicted import Enough, OutOfMemoryError, Unknown, plan
        from vramscope.recorder import Recorder, RecorderOptions

        plan.card, plan.capacity_bytes, plan.steps = self.card, self.total_bytes, self._steps
        plan.n_ranks = self._ranks
        recorder = Recorder(RecorderOptions(self.directory, "predicted", None, 64, None), quiet=True)
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
            plan.card = None
            self.directory = recorder.directory

    def _run(self, body: Callable[[], Any]) -> None:
        if self._change is None:
            body()
            return
        from vramscope.capture.predicted.changes import changed

        with changed(self._change) as result:
            try:
                body()
            finally:
                self.unchanged, self.n_blocks = result.problem(self._change), result.n_blocks

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
    card: str,
    capacity: str | int | None,
    steps: int | None,
    directory: str | os.PathLike[str] | None,
    ranks: int | None = None,
    change: "DryChange | None" = None,
) -> DryRun:
    """A dry run that can be started; raises as ``predict``."""
    if importlib.util.find_spec("torch") is None:
        raise CaptureError('a dry run needs torch: pip install "vramscope[torch]"')
    if steps is not None and steps < 1:
        raise UsageError("steps: at least 1")
    if ranks is not None and ranks < 1:
        raise UsageError("ranks: at least 1")
    hardware, total_bytes = _card(card, capacity)
    place = (
        Path(tempfile.mkdtemp(prefix="vramscope-")) / "predicted" if directory is None else Path(directory)
    )
    return DryRun(place.absolute(), hardware, total_bytes, steps, ranks, change)


def _card(name: str, capacity: str | int | None) -> tuple["Hardware", int]:
    from vramscope.analysis.fit.cards import card_named
    from vramscope.capture.predicted.cards import HARDWARE, words

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
    from vramscope.capture.predicted.module import training_of

    return training_of(program, inputs)


def answer(run: DryRun) -> Prediction:
    """Return the prediction of a dry run that is over."""
    from vramscope.loading import load

    capture = run.capture
    recording = load(run.directory).recordings[0]
    peak = recording.peak().allocated
    found = Prediction(
        peak_allocated_bytes=capture.peaks["allocated"],
        peak_reserved_bytes=capture.peaks["reserved"],
        phase=None if peak.phase is None else peak.phase.name.lower(),
        step=peak.step,
        fits=run.fits,
        capacity_bytes=run.total_bytes,
        context_bytes=run.card.context_bytes,
        card=run.card.name,
        certainty=capture.certainty,
        range_bytes=capture.range_bytes,
        reasons=capture.reasons,
        out_of_memory=capture.ran_out_at,
        run=run.directory,
        out_of_memory_point=_ran_out(capture, recording),
        unchanged=run.unchanged,
        n_blocks=run.n_blocks,
    )
    return replace(found, cards=on_every_card(found))


def _ran_out(capture: "Predicted", recording: "Recording") -> OutOfMemoryPoint | None:
    from vramscope.analysis.step_and_phase import step_and_phase_at
    from vramscope.model.marks import MarkKind

    point = capture.ran_out
    if point is None:
        return None
    event = int(recording.marks.event[recording.marks.kind == MarkKind.OOM][0])
    step, phase = step_and_phase_at(recording, event)
    return OutOfMemoryPoint(*point, None if phase is None else phase.name.lower(), step)


def known_cards() -> tuple[CardRoom, ...]:
    """Every card for which a program can be run dry, the smallest first."""
    from vramscope.analysis.fit.cards import card_named
    from vramscope.capture.predicted.cards import HARDWARE

    known = [(each, card_named(each.name)) for each in HARDWARE]
    return tuple(
        CardRoom(each.name, card.total_bytes, each.context_bytes, each.capability)
        for each, card in known
        if card is not None
    )


def on_every_card(found: Prediction) -> tuple[OnCard, ...]:
    """The verdict for every known card, as far as one dry run decides it."""
    cards = known_cards()
    own = next(each for each in cards if each.name == found.card)
    # With --capacity the card as it is sold is one of the others.
    return on_cards(found.need, replace(own, total_bytes=found.capacity_bytes), found.fits, cards)


def room_of(card: str, capacity: str | int | None) -> CardRoom:
    """The card that the words name, with the capacity instead of its own; raises UsageError."""
    hardware, total_bytes = _card(card, capacity)
    return CardRoom(hardware.name, total_bytes, hardware.context_bytes, hardware.capability)


def predict_largest(
    program: Callable[[int], Any],
    *,
    start: int = 1,
    card: str = DEFAULT_CARD,
    capacity: str | int | None = None,
    steps: int | None = 3,
) -> LargestSize:
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
    if start < 1:
        raise UsageError("start: at least 1")
    room = room_of(card, capacity)

    def trial(size: int) -> SizeTrial:
        found = predict(lambda: program(size), card=card, capacity=capacity, steps=steps)
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
