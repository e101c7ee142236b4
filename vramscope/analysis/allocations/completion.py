"""Completes a search while it is typed, with the names that occur in the recording."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from vramscope.analysis.allocations.conditions import Columns
from vramscope.analysis.allocations.language import FLAGS, LIMITS, NAMED, Field, token_at
from vramscope.analysis.annotations import annotations
from vramscope.analysis.folding import Origin, fold, origins
from vramscope.analysis.lines import short_file
from vramscope.analysis.step_and_phase import phases_of, steps_of
from vramscope.model.marks import Category, Phase
from vramscope.model.stacks import Frame
from vramscope.package_data import words
from vramscope.units import format_name

MOST_OPTIONS = 12
"""Longest list of options: more are not read while one types."""


class Option(NamedTuple):
    """One way to go on."""

    text: str
    """What replaces the term at the caret."""
    meaning: str
    """A few words about it; '' where the text speaks for itself."""


class Completion(NamedTuple):
    """The options for the term at the caret."""

    start: int
    """First letter of the text that an option replaces."""
    end: int
    """The letter after the last of them."""
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names by which the allocations of one recording can be found; each finds at least one."""

    values: Mapping[Field, Sequence[str]]
    """What follows the colon of each field that has one, as a search writes it."""
    places: Sequence[str]
    """Lines of the program: ``train.py:13``, most frequent first."""


_MEANINGS = words(__file__, "completion.tsv", "field")
_LIMITS = {Field.SIZE: ("1MiB", "64MiB", "1GiB"), Field.LIFE: ("1ms", "100ms", "2s")}


def vocabulary(columns: Columns) -> Vocabulary:
    """Return the names that a search of these allocations can use."""
    values = {
        Field.CATEGORY: _categories(columns),
        Field.PHASE: _phases(columns),
        Field.MODULE: _modules(columns),
        Field.STEP: _steps(columns),
        Field.STREAM: [str(stream) for stream in np.unique(columns.found.stream).tolist()],
        Field.ANNOTATION: _annotations(columns),
        Field.LINE: _lines(columns),
        Field.LIVE: ["peak", "end"],
    }
    files, functions, places = _code(columns)
    return Vocabulary(values | {Field.FILE: files, Field.FUNCTION: functions}, places)


def completed(text: str, caret: int, known: Vocabulary) -> Completion:
    """Return how the term that ends at the caret can go on.

    *caret* is the number of letters before it; the term is taken as far as it.
    """
    start, end = token_at(text, caret)
    typed = text[start:caret]
    sign = "-" if typed.startswith("-") else ""
    options = islice(_options(typed[len(sign) :], known), MOST_OPTIONS)
    return Completion(start, end, tuple(Option(sign + each.text, each.meaning) for each in options))


# --------------------------------------------------------------------------------------- options


def _options(typed: str, known: Vocabulary) -> Iterator[Option]:
    if typed.startswith('"'):
        names = chain(known.values[Field.FUNCTION], known.values[Field.FILE])
        yield from _plain(_fitting(typed.strip('"'), (name for name in names if "*" not in name)), '"{}"')
        return
    name, colon, value = typed.partition(":")
    if colon and name.lower() in NAMED:
        field = Field(name.lower())
        yield from _plain(_fitting(value, known.values.get(field, ())), f"{field}:{{}}")
        return
    limit = re.match(r"(size|life)[<>]", typed.lower())
    if limit:
        yield from _limited(Field(limit[1]), typed)
        return
    yield from _fields(typed)
    if typed:
        yield from _named(typed, known)


def _fields(typed: str) -> Iterator[Option]:
    """Yield the fields of this beginning."""
    for field in (*NAMED, *LIMITS, *FLAGS):
        if field.startswith(typed.lower()):
            after = ":" if field in NAMED else ">" if field is Field.SIZE else "<" if field in LIMITS else ""
            yield Option(f"{field}{after}", _MEANINGS[field])


def _named(typed: str, known: Vocabulary) -> Iterator[Option]:
    """Yield lines of the program, then names of each kind, with what each of them is."""
    yield from _plain(_fitting(typed, known.places), "{}")
    for field in (Field.CATEGORY, Field.PHASE, Field.FUNCTION, Field.FILE, Field.MODULE):
        yield from _plain(_fitting(typed, known.values[field]), f"{field}:{{}}")


def _limited(field: Field, typed: str) -> Iterator[Option]:
    sign = typed[len(field)]
    for value in _fitting(typed[len(field) + 1 :], _LIMITS[field]):
        yield Option(f"{field}{sign}{value}", _MEANINGS[field].partition(",")[0])


def _plain(names: Iterable[str], form: str) -> Iterator[Option]:
    return (Option(form.format(name), "") for name in names)


def _fitting(typed: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the names that begin with these letters, then those that have them elsewhere."""
    wanted, later = typed.lower(), []
    for name in names:
        if name.lower().startswith(wanted):
            yield name
        elif wanted in name.lower():
            later.append(name)
    yield from later


# ----------------------------------------------------------------------------------------- names


def _annotations(columns: Columns) -> list[str]:
    """Return the texts of the program; a search has no spaces within a value."""
    found = annotations(columns.recording)
    return [found.texts[each].replace(" ", "*") for each in np.unique(found.text).tolist()]


def _categories(columns: Columns) -> list[str]:
    return [_pattern(format_name(Category(each)), "-") for each in np.unique(columns.category).tolist()]


def _phases(columns: Columns) -> list[str]:
    """Return the phases in which something was allocated; those that the program named by their names."""
    phases, event = columns.recording.phases, columns.found.alloc_event
    rows = np.append(phases_of(phases, len(columns.recording.trace)), -1)[event[event >= 0]]
    own, others = set[str](), set[Phase]()
    for row in np.unique(rows).tolist():
        phase = Phase(int(phases.phase[row])) if row >= 0 else Phase.OTHER
        name = phases.names[phases.name[row]] if phase is Phase.USER else ""
        if name:
            own.add(name)
        else:
            others.add(phase)
    return [*(_pattern(format_name(each), "-") for each in sorted(others)), *map(_pattern, sorted(own))]


def _lines(columns: Columns) -> list[str]:
    """Return the lines that allocated, those of most allocations first."""
    code = fold(columns.recording.stacks)
    nodes, n = np.unique(code.place[columns.found.stack_id], return_counts=True)
    counts = dict[str, int]()
    for node, count in zip(nodes.tolist(), n.tolist(), strict=True):
        place = line_term(code.stacks.frame(node)) if node else ""
        if place:
            counts[place] = counts.get(place, 0) + count
    return _most_first(counts)


def line_term(frame: Frame) -> str:
    """Return a line as the field ``line`` takes it, ``net/model.py:13``; '' where it has no such name."""
    name = short_file(frame.file.replace("\\", "/"))
    return f"{name}:{frame.line}" if frame.line and re.fullmatch(r"\S+\.\w+", name) else ""


def _modules(columns: Columns) -> list[str]:
    owners = columns.owners()
    return [_pattern(owners.paths[i]) for i in np.unique(owners.module).tolist() if owners.paths[i]]


def _steps(columns: Columns) -> list[str]:
    steps, event = columns.recording.steps, columns.found.alloc_event
    rows = steps_of(steps, event)
    return [str(number) for number in np.unique(steps.index[rows[(rows >= 0) & (event >= 0)]]).tolist()]


def _code(columns: Columns) -> tuple[list[str], list[str], list[str]]:
    """Return names of files, functions and lines of the program, those of most stacks first.

    Where no file is the program's, those of the libraries.
    """
    stacks = columns.recording.stacks
    who = origins(stacks)[stacks.file]
    # A frame counts if something was allocated in it or below it.
    is_used = np.zeros(len(stacks.parent), dtype=bool)
    above = np.unique(columns.found.stack_id)
    while len(above := above[above > 0]):
        is_used[above] = True
        above = np.unique(stacks.parent[above])
    rows = np.flatnonzero(is_used & (who == Origin.USER))
    if not len(rows):
        rows = np.flatnonzero(is_used)
    frames = np.stack([stacks.file[rows], stacks.function[rows], stacks.line[rows]], axis=1)
    found, n = np.unique(frames, axis=0, return_counts=True)
    files, functions, places = dict[str, int](), dict[str, int](), dict[str, int]()
    for (file, function, line), count in zip(found.tolist(), n.tolist(), strict=True):
        name = stacks.strings[file].replace("\\", "/").rpartition("/")[2]
        _add(files, _pattern(name, "*"), count)
        _add(functions, _pattern(stacks.strings[function], "*"), count)
        if line and re.fullmatch(r"\S+\.\w+", name):
            _add(places, f"{name}:{line}", count)
    return _most_first(files), _most_first(functions), _most_first(places)


def _add(counts: dict[str, int], name: str, count: int) -> None:
    if name:
        counts[name] = counts.get(name, 0) + count


def _most_first(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


def _pattern(name: str, gap: str = "?") -> str:
    """Return the name as a search writes it: a term has no blanks, and a bracket would begin a class."""
    found = re.sub(r"\s", gap, name)
    return found.replace("[", "?") if gap == "?" or (gap == "*" and gap in found) else found
