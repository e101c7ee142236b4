"""The gate of verdicts: what of a recording is complete, and which verdicts that leaves.

A verdict says what is certain to hold: "fits", "nothing grows", a limit that is kept, "no difference". Where
a part is missing that it rests on, it is not given; figures are then lower bounds, and are called so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from vramscope.analysis import Analysis
from vramscope.analysis.leaks import Leaks, leaks
from vramscope.analysis.verdicts.growth import MemoryGrowth, memory_growth
from vramscope.analysis.verdicts.missing import Missing, Part, missing_parts
from vramscope.model.recording import Recording


class Verdict(str, Enum):
    """What is said of a recording, beside its ``growth``."""

    LIMIT = "limit"
    """No more was allocated, or reserved, than is stated."""
    FIT = "fit"
    """The program fits a device."""
    DIFFERENCE = "difference"
    """Two recordings do not differ."""


_RESTS_ON = {
    Verdict.LIMIT: (Part.EVENTS, Part.CERTAINTY, Part.END, Part.RANKS),
    Verdict.FIT: (Part.EVENTS, Part.CERTAINTY, Part.SINGLE_EVENTS, Part.END),
    Verdict.DIFFERENCE: (Part.EVENTS, Part.SINGLE_EVENTS, Part.END, Part.STEPS),
}


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a recording lacks, and what can be said of it all the same."""

    missing: tuple[Missing, ...]
    """What the recording lacks, the gravest first; empty where it is complete."""
    growth: MemoryGrowth
    """Whether memory grows from step to step."""

    @property
    def peak_is_exact(self) -> bool:
        """Whether peaks are exact up to the end of the recording; otherwise they are lower bounds."""
        return is_exact(self.missing)


def verdicts(recording: Recording) -> Verdicts:
    """Return what *recording* lacks and the verdicts that this leaves; 1 s per million events."""
    return verdicts_of(recording, leaks(recording))


def verdicts_of(recording: Recording, found: Leaks) -> Verdicts:
    """Return the same where *found*, the answer of ``leaks``, is known."""
    missing = missing_parts(recording)
    return Verdicts(missing, memory_growth(recording, found, missing))


def why_not(missing: Iterable[Missing], verdict: Verdict) -> str:
    """Return why *verdict* cannot be given, as a clause; '' if it can."""
    return next((each.text for each in missing if each.part in _RESTS_ON[verdict]), "")


def undecided_difference(before: Recording, after: Recording) -> str:
    """Return why it is not decided whether two recordings differ, as a clause; '' if it is."""
    reasons = [why_not(missing_parts(each), Verdict.DIFFERENCE) for each in (before, after)]
    named = [f"of the {name} {why}" for name, why in zip(("first", "second"), reasons, strict=True) if why]
    return "; ".join(named)


def is_exact(missing: Iterable[Missing]) -> bool:
    """Return whether totals and peaks are exact as far as the recording reaches."""
    return not any(each.part in (Part.EVENTS, Part.CERTAINTY) for each in missing)


ANALYSIS = Analysis("verdicts", "What of this recording is complete, and what can be said of it?", verdicts)
