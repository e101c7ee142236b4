"""What a dry run predicts: the peaks, whether they fit, how certain that is, and where memory runs out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.errors import UsageError
from vramscope.units import format_bytes

if TYPE_CHECKING:
    from vramscope.model.recording import Recording

FITS_WORD = {True: "fits", False: "does not fit", None: "cannot tell"}


class ChangedAnswer(NamedTuple):
    """The answer that one place of the program gets in a dry run, instead of the one of the first run."""

    key: str
    """The file and the line that ask, which may be a library's."""
    answer: str
    """``always true``, ``always false``, or a number that is ``rising`` or ``falling``."""
    most_asked: int
    """How often the place may ask before the run ends."""


class Choice(NamedTuple):
    """A place of the program that decides by a value that nobody computed."""

    what: str
    where: str
    """The program's own line, ``train.py:31``."""
    otherwise: tuple[ChangedAnswer, ...]
    """Every other way to answer it."""


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
    phase: str | None = None
    step: int | None = None


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
    least_allocated_bytes: int | None = None
    """The lower bound of its peak."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a program needs on any card, as far as dry runs tell."""

    allocated_bytes: int
    """Lower bound of the peak of allocated bytes."""
    reserved_bytes: int
    """Lower bound of the peak of reserved bytes."""
    doubt_bytes: int | None
    """Bytes by which both may be higher; None if nothing bounds them."""
    is_whole: bool = True
    """Whether the program went on to the end; False if memory ran out."""

    @property
    def most_allocated_bytes(self) -> int | None:
        """Upper bound of the peak of allocated bytes; None if nothing bounds it."""
        is_bounded = self.doubt_bytes is not None and self.is_whole
        return self.allocated_bytes + (self.doubt_bytes or 0) if is_bounded else None

    def fits(self, room_bytes: int) -> bool | None:
        """Whether it fits where the allocator can reserve so many bytes; None where that is not known."""
        if self.allocated_bytes > room_bytes:
            return False
        if self.doubt_bytes is None or not self.is_whole:
            return None
        return True if self.reserved_bytes + self.doubt_bytes <= room_bytes else None


class Headroom(NamedTuple):
    """Bytes left on a card at the peak of reserved memory; negative bytes are missing."""

    least_bytes: int | None
    """None where nothing bounds the need."""
    most_bytes: int


@dataclass(frozen=True, slots=True)
class OnCard:
    """The verdict for one card."""

    card: str
    capacity_bytes: int
    """Bytes as torch finds them."""
    fits: bool | None
    """Whether the program fits; None if that is not known."""
    headroom_bytes: Headroom | None
    """What is left at the peak; None where memory ran out before it."""
    is_own_run: bool
    """Whether the program was run dry for this card; else the verdict follows from a run for another one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer of the dry runs of one program; its recording keeps it."""

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
    ended_after: str = "its end"
    """How far the program was run: to ``its end``, for ``3 steps``."""
    choices: tuple[Choice, ...] = field(default=(), compare=False)
    """The places of the program that decide by a value that nobody computed."""
    otherwise: tuple[OtherRun, ...] = ()
    """The same program with each of these places answered otherwise, one at a time."""
    without_limit: "Prediction | None" = None
    """The same program on a card without a limit, where memory runs out; its recording is not kept."""
    loaded: Any = field(default=None, repr=False, compare=False)
    """What ``recording`` returns; None where this was read from a recording."""

    @property
    def recording(self) -> "Recording":
        """What was predicted, with every analysis as a method."""
        if self.loaded is None:
            raise UsageError(f"this prediction was read from a recording: vramscope.load({str(self.run)!r})")
        return self.loaded

    @property
    def need(self) -> Need:
        """What the program needs on any card, as far as these runs tell."""
        if self.without_limit is not None:
            return self.without_limit.need
        runs = [each for each in self.otherwise if each.peak_allocated_bytes is not None]
        low, high = self.range_bytes
        # A range that begins below the peak that was reached says the same of the reserved bytes.
        below = [(each.peak_allocated_bytes or 0) - (each.least_allocated_bytes or 0) for each in runs]
        slack = max(below, default=self.peak_allocated_bytes - low)
        reserved = [self.peak_reserved_bytes, *(each.peak_reserved_bytes or 0 for each in runs)]
        least = max(min(reserved) - slack, low)
        doubt = None
        if high is not None and self.certainty != "cannot_tell":
            doubt = max(high - low, max(reserved) - least + high - self.peak_allocated_bytes)
        is_whole = self.out_of_memory is None and all(each.is_whole for each in runs)
        return Need(low, least, doubt, is_whole)

    @property
    def is_bounded(self) -> bool:
        """Whether the program surely needs no more than its range says."""
        return self.need.most_allocated_bytes is not None

    @property
    def undecided(self) -> str:
        """Why a verdict is not known, where one is not, as a clause."""
        if self.reasons:
            return f"the dry run does not decide it ({self.reasons[0]})"
        return "it is close, and a dry run for this card decides it: vramscope predict --card"

    def fits_on(self, total_bytes: int) -> bool | None:
        """Return whether the program fits a card of so many bytes; None where that is not known.

        Parameters
        ----------
        total_bytes
            The bytes of the card as torch finds them. Known cards of that size have to agree.

        Returns
        -------
        bool or None
            As ``fits``.
        """
        if total_bytes == self.capacity_bytes:
            return self.fits
        verdicts = {each.fits for each in self.cards if each.capacity_bytes == total_bytes}
        if verdicts:
            return verdicts.pop() if len(verdicts) == 1 else None
        return self.need.fits(max(total_bytes - self.context_bytes, 1))

    @property
    def sentence(self) -> str:
        """The answer as one line."""
        verdict = {True: "fits on", False: "does not fit on", None: "may or may not fit on"}[self.fits]
        card = f"the {self.card} ({format_bytes(self.capacity_bytes)})"
        beside = "" if self.fits else f"; CUDA itself takes about {format_bytes(self.context_bytes)} of it"
        return f"{verdict} {card}: {self.needs}{beside if self.context_bytes else ''}"

    @property
    def needs(self) -> str:
        """What the program needs, in words: without a limit, where memory runs out."""
        whole = self.without_limit or self
        is_least = whole.certainty == "cannot_tell" or whole.out_of_memory is not None
        # Where the tables may be off by a share, so may be a lower bound.
        less = max(whole.peak_allocated_bytes - whole.range_bytes[0], 0) if is_least else 0
        peaks = whole.peak_allocated_bytes, whole.peak_reserved_bytes
        allocated, reserved = (format_bytes(peak - less) for peak in peaks)
        at_least = "at least " if is_least else ""
        needs = "it needs " if whole is not self else ""
        return f"{needs}{at_least}{allocated} allocated, {reserved} reserved"

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``vramscope predict --json`` prints.

        Returns
        -------
        dict
            Sizes in bytes under names that end in ``_bytes``; a test validates it by its schema.
        """
        point = self.out_of_memory_point
        frames = (
            [dict(zip(("file", "line", "function"), each, strict=True)) for each in point.frames]
            if point
            else []
        )
        return {
            "schema": 1,
            **self._figures(),
            "fits": self.fits,
            "capacity_bytes": self.capacity_bytes,
            "run": str(self.run),
            "card": self.card,
            "context_bytes": self.context_bytes,
            "out_of_memory": point and asdict(point) | {"frames": frames},
            "cards": [asdict(each) for each in self.cards],
            "need": asdict(self.need),
            "without_limit": None if self.without_limit is None else self.without_limit._figures(),
        }

    def _figures(self) -> dict[str, Any]:
        """What is known of a run without a limit, too."""
        return {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "phase": self.phase,
            "step": self.step,
            "certainty": self.certainty,
            "reasons": list(self.reasons),
            "peak_allocated_range_bytes": list(self.range_bytes),
            "out_of_memory_at": self.out_of_memory,
            "ended_after": self.ended_after,
            "otherwise": [asdict(each) for each in self.otherwise],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Prediction":
        """Return the prediction that ``to_json`` wrote; fields of later versions are left out.

        Raises KeyError, TypeError or ValueError where it is not one.
        """
        (low, high), whole = document["peak_allocated_range_bytes"], document.get("without_limit")
        return cls(
            peak_allocated_bytes=int(document["peak_allocated_bytes"]),
            peak_reserved_bytes=int(document["peak_reserved_bytes"]),
            phase=document["phase"],
            step=document["step"],
            fits=document.get("fits"),
            capacity_bytes=int(document.get("capacity_bytes", 0)),
            context_bytes=int(document.get("context_bytes", 0)),
            card=str(document.get("card", "")),
            certainty=str(document["certainty"]),
            range_bytes=(int(low), None if high is None else int(high)),
            reasons=tuple(map(str, document["reasons"])),
            out_of_memory=document["out_of_memory_at"],
            run=Path(document.get("run", "")),
            cards=tuple(map(_card_of, document.get("cards", ()))),
            out_of_memory_point=_point_of(document.get("out_of_memory")),
            ended_after=str(document["ended_after"]),
            otherwise=tuple(OtherRun(**_known(OtherRun, each)) for each in document["otherwise"]),
            without_limit=None if whole is None else cls.from_json(whole),
        )


def _point_of(document: Mapping[str, Any] | None) -> OutOfMemoryPoint | None:
    if document is None:
        return None
    frames = tuple((each["file"], each["line"], each["function"]) for each in document["frames"])
    return OutOfMemoryPoint(**(_known(OutOfMemoryPoint, document) | {"frames": frames}))


def _card_of(document: Mapping[str, Any]) -> OnCard:
    headroom = document["headroom_bytes"]
    found = _known(OnCard, document)
    return OnCard(**(found | {"headroom_bytes": None if headroom is None else Headroom(*headroom)}))


def _known(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a class that a document has."""
    return {name: document[name] for name in kind.__dataclass_fields__ if name in document}
