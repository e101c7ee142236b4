"""Evaluates the terms of a search over the columns of all allocations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from vramscope.analysis.allocations.language import Field, SearchError, Term
from vramscope.analysis.annotations import annotations
from vramscope.analysis.by_module import Owners
from vramscope.analysis.folding import fold, with_callees
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.timeline import named_instant
from vramscope.errors import UsageError
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array
from vramscope.steps.innermost import phases_of
from vramscope.units import format_name


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the terms look at: one row per row of ``lifetimes``."""

    recording: Recording
    found: Allocations
    category: Array
    """A ``Category`` for each allocation."""
    owners: Callable[[], Owners]
    """Returns the module of each allocation; called only where a term asks for modules."""


def matching(terms: Sequence[Term], columns: Columns, text: str = "") -> Array:
    """Return which allocations meet all terms, shape (allocations,), bool.

    Raises
    ------
    SearchError
        If a term names a category or phase that does not exist; *text* is what it points into.
    """
    hit = np.ones(len(columns.found), dtype=bool)
    for term in terms:
        hit &= _CONDITIONS[term.field](term, columns, text) != term.is_excluded
    return hit


def _life(term: Term, columns: Columns, _: str) -> Array:
    """Compare lifetimes; they are infinite where there is no free, or no allocation within the recording."""
    found = columns.found
    has_both = (found.free_event >= 0) & (found.alloc_event >= 0)
    return _between(np.where(has_both, found.free_ns - found.alloc_ns, np.inf), term)


def _step(term: Term, columns: Columns, _: str) -> Array:
    steps, event = columns.recording.steps, columns.found.alloc_event
    row = steps_of(steps, event)
    number = np.append(steps.index, -1)[row]
    return (row >= 0) & (event >= 0) & _between(number, term)


def _between(values: Array, term: Term) -> Array:
    return (values >= term.low) & (values <= term.high)


def _category(term: Term, columns: Columns, text: str) -> Array:
    names = [format_name(each) for each in Category]
    return np.isin(columns.category, _chosen(term, names, text))


def _phase(term: Term, columns: Columns, text: str) -> Array:
    phases = columns.recording.phases
    event = columns.found.alloc_event
    row = np.append(phases_of(phases, len(columns.recording.trace)), -1)[np.maximum(event, -1)]
    of_row = np.append(phases.phase, int(Phase.OTHER))[row]
    own = [i for i, name in enumerate(phases.names) if name and fnmatchcase(name.lower(), term.value)]
    if own:
        return (of_row == Phase.USER) & np.isin(np.append(phases.name, -1)[row], own)
    names = [format_name(each) for each in Phase]
    return np.isin(of_row, _chosen(term, names, text)) & (event >= 0)


def _chosen(term: Term, names: Sequence[str], text: str) -> list[int]:
    """Return the numbers of the names that a value means: one name, the beginning of one, or a pattern."""
    value = term.value.replace("_", " ").replace("-", " ")
    exact = [i for i, name in enumerate(names) if fnmatchcase(name, value)]
    chosen = exact or [i for i, name in enumerate(names) if name.startswith(value)]
    if not chosen:
        known = ", ".join(name.replace(" ", "-") for name in names)
        raise SearchError(f"unknown {term.field}; there are {known}", text, term.start, term.end)
    return chosen


def _module(term: Term, columns: Columns, _: str) -> Array:
    owners = columns.owners()
    path = term.value.strip('"')
    patterns = (path,) if path != term.value else (path, f"{path}.*")
    hit = [
        bool(path) and any(fnmatchcase(path.lower(), pattern) for pattern in patterns)
        for path in owners.paths
    ]
    return np.array(hit, dtype=bool)[owners.module]


def _word(term: Term, columns: Columns, _: str) -> Array:
    stacks = columns.recording.stacks
    named = _strings_with(stacks, lambda name: term.value in name.lower())
    hit = _of_frames(columns, named[stacks.function] | named[stacks.file])
    categories = [each for each in Category if each and format_name(each) == term.value.replace("_", " ")]
    if categories:
        hit |= np.isin(columns.category, categories)
    owners = columns.owners()
    of_path = np.array([term.value in path.lower() for path in owners.paths], dtype=bool)
    return hit | of_path[owners.module]


def _exact(term: Term, columns: Columns, _: str) -> Array:
    stacks = columns.recording.stacks
    function = _strings_with(stacks, lambda name: name == term.value)
    file = _strings_with(stacks, lambda name: _is_path(name, term.value))
    return _of_frames(columns, function[stacks.function] | file[stacks.file])


def _line(term: Term, columns: Columns, _: str) -> Array:
    code = fold(columns.recording.stacks)
    named = np.array([_is_path(text.lower(), term.value) for text in code.stacks.strings], dtype=bool)
    hit = named[code.stacks.file] & _between(code.stacks.line, term)
    return hit[code.place[columns.found.stack_id]]


def _file_or_function(term: Term, columns: Columns, _: str) -> Array:
    stacks = columns.recording.stacks
    named = _strings_with(stacks, lambda name: _fits(name.lower(), term.value))
    return _of_frames(columns, named[stacks.file if term.field is Field.FILE else stacks.function])


def _place(term: Term, columns: Columns, _: str) -> Array:
    stacks = columns.recording.stacks
    named = _strings_with(stacks, lambda name: _is_path(name.lower(), term.value))
    return _of_frames(columns, named[stacks.file] & _between(stacks.line, term))


def _fits(name: str, value: str) -> bool:
    return fnmatchcase(name, value) if "*" in value else value in name


def _is_path(path: str, end: str) -> bool:
    """Whether *end* is the path, or whole parts at its end."""
    path, end = path.replace("\\", "/"), end.replace("\\", "/")
    return path == end or path.endswith("/" + end.lstrip("/"))


def _strings_with(stacks: Stacks, fits: Callable[[str], bool]) -> Array:
    return np.array([fits(text) for text in stacks.strings], dtype=bool)


def _of_frames(columns: Columns, hit: Array) -> Array:
    """Return the allocations that have one of the frames anywhere in their stack."""
    is_there = hit & (np.arange(len(hit)) > 0)
    return with_callees(columns.recording.stacks, is_there)[columns.found.stack_id]


def _annotation(term: Term, columns: Columns, _: str) -> Array:
    found = annotations(columns.recording)
    fits = np.array([_fits(text.lower(), term.value) for text in found.texts], dtype=bool)
    hit = np.zeros(len(columns.found), dtype=bool)
    hit[found.row[fits[found.text]]] = True
    return hit


def _live(term: Term, columns: Columns, text: str) -> Array:
    try:
        at = named_instant(columns.recording, term.value)
    except UsageError as error:
        raise SearchError(str(error), text, term.start, term.end) from None
    return columns.found.allocated_at(at)


def _address(term: Term, columns: Columns, _: str) -> Array:
    found, address = columns.found, int(term.value, 16 if term.value[1:2] in "xX" else 10)
    if address >= 1 << 64:
        return np.zeros(len(found), dtype=bool)
    # Differences of unsigned numbers wrap around below the block, to more than any size.
    within = np.uint64(address) - found.address.astype("u8")
    return within < np.maximum(found.block_size, 1).astype("u8")


_CONDITIONS: dict[Field, Callable[[Term, Columns, str], Array]] = {
    Field.WORD: _word, Field.EXACT: _exact, Field.PLACE: _place, Field.CATEGORY: _category,
    Field.PHASE: _phase, Field.MODULE: _module, Field.STEP: _step, Field.FILE: _file_or_function,
    Field.FUNCTION: _file_or_function, Field.LINE: _line, Field.LIVE: _live, Field.ADDRESS: _address,
    Field.LIFE: _life, Field.ANNOTATION: _annotation,
    Field.STREAM: lambda term, columns, _: _between(columns.found.stream, term),
    Field.SIZE: lambda term, columns, _: _between(columns.found.block_size, term),
    Field.ALIVE: lambda _, columns, __: columns.found.free_event == -1,
    Field.BEFORE: lambda _, columns, __: columns.found.alloc_event < 0,
}  # fmt: skip
