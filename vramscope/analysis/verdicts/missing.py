"""Which parts of a recording are missing, by its notes, its end and what its source can contain."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.trace import Action
from vramscope.package_data import rows, words


def ended_short(recording: Recording) -> bool:
    """Return whether no allocation succeeded after the last one that failed."""
    action = recording.trace.action
    failed = np.flatnonzero(action == Action.OOM)
    return bool(len(failed)) and Action.ALLOC not in action[failed[-1] :]


class Part(str, Enum):
    """A part of a recording that a verdict rests on."""

    EVENTS = "events"
    """The allocator's events; without some of them, totals and peaks are lower bounds."""
    CERTAINTY = "certainty"
    """Certain figures; those of a prediction may be an estimate or lower bounds."""
    SINGLE_EVENTS = "single_events"
    """Single events; a source without any has totals at moments only."""
    END = "end"
    """The rest of the run: the recording ends before the program does, or the program before its end."""
    STEPS = "steps"
    """Steps and phases."""
    STACKS = "stacks"
    """The lines of code that allocate."""
    RANKS = "ranks"
    """The other ranks of the job."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One reason why a recording does not decide everything."""

    part: Part
    code: str
    """Code of the note that says it, or how the run ended."""
    text: str
    """The reason as a clause, without its first capital."""
    until: str = ""
    """For a missing end: the moment up to which the recording counts, such as ``until writing stopped``."""


def until(missing: Iterable[Missing]) -> str:
    """Return up to which moment a recording counts that lacks its end; '' for a complete one."""
    return next((each.until for each in missing if each.until), "")


_OF_EVENTS = words(__file__, "missing.tsv", "events")
"""Codes of notes on events that are missing or wrong; the note's value completes the clause."""
_NO_SINGLE_EVENTS = words(__file__, "missing.tsv", "single_events")
_OF_END = {code: (reason, until) for code, reason, until in rows(__file__, "missing.tsv", "end")}
_OF_FILES = (NoteCode.CHANGED_FILE, NoteCode.CUT_FILE, NoteCode.DAMAGED, NoteCode.MISSING_FILE)
_OF_STREAMS: Mapping[str, tuple[Part, str]] = {
    "marks": (Part.STEPS, "its steps are incomplete: a file is damaged or missing"),
    "steps": (Part.STEPS, "its oldest steps are incomplete: a file is damaged or missing"),
    "stacks": (Part.STACKS, "its lines of code are incomplete: a file is damaged or missing"),
}
_HARMLESS_STREAMS = ("holders", "labels", "pools", "samples")
"""Streams without which totals, steps and lines are what they are."""
_STOPPED_EARLY = (NoteCode.STOPPED, NoteCode.RECORDING_FAILED)
_OWN_ENDS = (NoteCode.DIED, *_STOPPED_EARLY)
"""Notes that name an end of the recording that is none of the program."""
_OF_OUTCOME = {Outcome.DIED: _OF_END[NoteCode.DIED]} | {
    Outcome(word): (reason, until) for word, reason, until in rows(__file__, "missing.tsv", "outcome")
}
_OUT_OF_MEMORY = (
    "the recording ends with an allocation that failed, and what comes after it is not known",
    "until memory ran out",
)
_OF_RUNS = (NoteCode.RANKS_MISSING, NoteCode.RANK_UNREADABLE, NoteCode.RANKS_DIFFER)


def missing_parts(recording: Recording) -> tuple[Missing, ...]:
    """Return what *recording* lacks, the gravest first, each reason once; empty where it is complete."""
    reasons = [*missing_of_notes(recording.notes), *_of_source(recording), *_of_end(recording)]
    place = {part: number for number, part in enumerate(Part)}
    # Of several reasons for one part, how many events are missing says most.
    return tuple(
        sorted(
            dict.fromkeys(reasons), key=lambda each: (place[each.part], each.code != NoteCode.MISSING_EVENTS)
        )
    )


def missing_of_notes(notes: Iterable[Note]) -> list[Missing]:
    """Return what *notes* say that a recording lacks, in their order."""
    return [found for note in notes if (found := _of_note(note)) is not None]


def full_device(recording: Recording) -> str:
    """Return that a simulated device was full, as the recording notes it; '' where it was not."""
    return next((note.text for note in recording.notes if note.code == NoteCode.SIMULATED_OOM), "")


def missing_ranks(run: Run) -> tuple[Missing, ...]:
    """Return the ranks of the job that *run* lacks; empty where it has all."""
    return tuple(Missing(Part.RANKS, note.code, note.text) for note in run.notes if note.code in _OF_RUNS)


def _of_note(note: Note) -> Missing | None:
    code = note.code
    if code in _OF_FILES:
        return _of_file(note)
    if code in _OF_EVENTS:
        return Missing(Part.EVENTS, code, _OF_EVENTS[code].format(note.value))
    if code in _NO_SINGLE_EVENTS:
        return Missing(Part.SINGLE_EVENTS, code, _NO_SINGLE_EVENTS[code])
    if code == NoteCode.PREDICTION:
        return Missing(Part.CERTAINTY, code, "its figures are an estimate or lower bounds", "as predicted")
    if code == NoteCode.RECURSION_LIMIT:
        return Missing(Part.STEPS, code, "some of its marks are missing")
    return Missing(Part.END, code, *_OF_END[code]) if code in _OF_END else None


def _of_file(note: Note) -> Missing | None:
    if note.stream in _HARMLESS_STREAMS:
        return None
    part, text = _OF_STREAMS.get(note.stream, (Part.EVENTS, "one of its files is damaged or incomplete"))
    return Missing(part, note.code, text)


def why_stopped(notes: Iterable[Note]) -> str:
    """Return why the recording stopped while the program went on; '' where it did not."""
    return next((note.text for note in notes if note.code in _STOPPED_EARLY), "")


def _of_source(recording: Recording) -> Iterator[Missing]:
    is_counted = any(note.code in _NO_SINGLE_EVENTS for note in recording.notes)
    if not len(recording.trace) and not is_counted:
        yield Missing(Part.SINGLE_EVENTS, NoteCode.NO_TRACE, "it has no events")


def _of_end(recording: Recording) -> Iterator[Missing]:
    if ended_short(recording):
        yield Missing(Part.END, "oom", *_OUT_OF_MEMORY)
    elif recording.outcome in _OF_OUTCOME and not any(n.code in _OWN_ENDS for n in recording.notes):
        yield Missing(Part.END, recording.outcome.value, *_OF_OUTCOME[recording.outcome])
