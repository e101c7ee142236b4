"""Sums live bytes by line and module, and formats lines as words.

The only formatter of source locations: report, diff, check and pages name a line by the same words.
It also shows the source lines of a frame, and whether the file may have changed since the recording; it works
on text, no file is opened here.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis.by_module import owners_of
from vramscope.analysis.categories import Assigned
from vramscope.analysis.folding import Folded, fold
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.tree import depths
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.table import Array, sums_of
from vramscope.steps.innermost import phases_at
from vramscope.steps.unrecorded import unrecorded
from vramscope.units import format_bytes, format_count, format_name

CALLERS_SHOWN = 1
NO_STACK = "no stack recorded"
_BEFORE, _BETWEEN = "from before the recording", "from steps without events"
_SIZES_SHOWN = 3
_NODE = re.compile(r"\b(\w+?)Backward\d+::")


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Live bytes of one stack, category and module: every field holds for each of these bytes."""

    n_bytes: int
    n_blocks: int
    category: Category
    module: str
    """Path of the module, ``transformer.h.3.mlp``; '' where it is unknown."""
    frames: tuple[Frame, ...]
    """The user's frames, innermost first; where there are none, the outermost of a library; may be empty."""
    is_library: bool
    """Whether ``frames`` are a library's, because no frame is the user's."""
    via: str
    """The library function that the program called there; '' where it called none."""
    n_folded: int
    """Number of frames of libraries, Python and C++ that are not among ``frames``."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the name that keeps them, as far as a search has seen it."""


@dataclass(frozen=True, slots=True)
class Line:
    """Live bytes of one line as a reader sees it: rows that read the same are merged."""

    n_bytes: int
    n_blocks: int
    frames: tuple[Frame, ...]
    """The frames as in ``LiveBytes``, from the stack that holds most."""
    via: str
    n_folded: int
    is_library: bool = False
    module: str = ""
    """Path of the one module; for several modules their common part, ``transformer.h.*.mlp``."""
    categories: tuple[Category, ...] = ()
    """The categories, the most bytes first."""
    holders: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the name that keeps them."""


def _without_a_line(
    recording: Recording, folded: Folded, found: Allocations, live: Array
) -> tuple[Array, tuple[str, ...]]:
    """Return what stands for each block without a line, as an index into words; 0 for nothing.

    A node of autograd names the operation whose backward it is: ``MmBackward0::apply``. Where no stack was
    recorded, sizes tell what was there before, and the phase where the block was made.
    """
    stacks, stack_id, born = recording.stacks, found.stack_id[live], found.alloc_event[live]
    words = np.full(len(live), "", "O")
    silent = (folded.place[stack_id] == 0) & (folded.via[stack_id] == 0) & (stack_id > 0)
    for each in np.unique(stack_id[silent]).tolist():
        nodes = (_NODE.search(frame.function) for frame in stacks.frames(each))
        name = next((node[1] for node in nodes if node), "")
        word = f"backward of {re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}" if name else ""
        words[stack_id == each] = word
    is_bare = stack_id == 0
    before = is_bare & (born < 0)
    if before.any():
        words[before] = f"{_BEFORE}: {_sizes(found.block_size[live[before]])}"
    rows = np.flatnonzero(is_bare & (born >= 0))
    phases = recording.phases
    for row, phase in zip(rows.tolist(), phases_at(phases, born[rows]).tolist(), strict=True):
        words[row] = f"{NO_STACK}, in {format_name(Phase(int(phases.phase[phase])))}" if phase >= 0 else ""
    words[is_bare & unrecorded(recording).stand_in(born)] = f"{NO_STACK}: {_BETWEEN}"
    names, index = np.unique(np.append(words, "").astype("U"), return_inverse=True)
    return index.reshape(-1)[:-1], tuple(names.tolist())


def _sizes(sizes: Array) -> str:
    """Return how many blocks have which sizes, as ``24 of 9.38 MiB, 48 of 2.25 MiB and 223 others``."""
    size, count = np.unique(sizes, return_counts=True)
    most = np.argsort(-size * count, kind="stable")[:_SIZES_SHOWN].tolist()
    shown = ", ".join(f"{count[at]:,} of {format_bytes(int(size[at]))}" for at in most)
    rest = len(sizes) - int(count[most].sum())
    return shown + (f" and {format_count(rest, 'other')}" if rest else "")


def live_bytes(
    recording: Recording,
    allocations: Allocations,
    assigned: Assigned,
    instant: int,
    holder_of: Mapping[int, str] | None = None,
) -> tuple[LiveBytes, ...]:
    """The allocated bytes at *instant*, largest row first; they sum up to all allocated bytes.

    *holder_of* has the name that keeps an allocation, by its row.
    """
    owners = owners_of(recording, allocations, assigned)
    live = allocations.largest_at(instant)
    folded = fold(recording.stacks)
    stack_id = allocations.stack_id[live]
    unplaced, words = _without_a_line(recording, folded, allocations, live)
    category, module = assigned.category[live], owners.module[live]
    columns = (folded.place[stack_id], folded.via[stack_id], category, module, unplaced)
    keys = np.stack([np.asarray(column, "i8") for column in columns], axis=1).reshape(-1, 5)
    unique, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    n_bytes = sums_of(group, allocations.block_size[live], len(unique))
    n_blocks = np.bincount(group, minlength=len(unique))
    holders: list[Counter[str]] = [Counter() for _ in unique]
    for of, row, size in zip(group, live.tolist(), allocations.block_size[live].tolist(), strict=True):
        if holder_of and row in holder_of:
            holders[of][holder_of[row]] += size
    rows, depth = [], depths(recording.stacks.parent)
    for row in np.argsort(-n_bytes, kind="stable").tolist():
        place, via, category, module, word = unique[row].tolist()
        frames = folded.stacks.frames(place)
        rows.append(
            LiveBytes(
                n_bytes=int(n_bytes[row]),
                n_blocks=int(n_blocks[row]),
                category=Category(category),
                module=owners.paths[module],
                frames=frames,
                is_library=bool(place) and folded.is_library(place),
                via=folded.strings[via] if via else words[word],
                n_folded=int(depth[stack_id[first[row]]]) - len(frames),
                holders=holders[row],
            )
        )
    return tuple(rows)


def lines(rows: Iterable[LiveBytes]) -> tuple[Line, ...]:
    """Merge *rows* that read the same: line, function called there, and caller. Largest first."""
    groups: dict[Any, list[LiveBytes]] = {}
    for row in rows:
        groups.setdefault((row.frames[: 1 + CALLERS_SHOWN], row.via, row.n_folded > 0), []).append(row)
    found = [_joined(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda line: -line.n_bytes))


class CodeLines(NamedTuple):
    """The lines that stacks belong to: one per line of the program and library function that it calls."""

    of_stack: Array
    """Index of the line, by stack_id."""
    frames: tuple[Frame, ...]
    """The line itself; without a file where no frame is known."""
    via: tuple[str, ...]
    """The library function that the line calls; '' where it calls none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Words for each line, unique: the whole path of its file, its function and what it calls."""
        return tuple(_whole_name(frame, via) for frame, via in zip(self.frames, self.via, strict=True))


def code_lines(stacks: Stacks) -> CodeLines:
    """The line of each stack, whoever called it: calls of one helper from two places are one line."""
    folded = fold(stacks)
    shown, place = folded.stacks, folded.place
    columns = (shown.function[place], shown.file[place], shown.line[place], folded.via)
    keys = np.stack([np.asarray(column, "i8") for column in columns], axis=1)
    unique, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    frames = tuple(shown.frame(node) if node else Frame("", "", 0) for node in place[first].tolist())
    via = tuple(folded.strings[i] if i else "" for i in unique[:, 3].tolist())
    return CodeLines(group.reshape(-1), frames, via)


def _whole_name(frame: Frame, via: str) -> str:
    if not frame.file:
        return via or NO_STACK
    return f"{frame.file}:{frame.line} {frame.function}" + (f": {via}" if via else "")


def _joined(group: Sequence[LiveBytes]) -> Line:
    most, holders = group[0], Counter[str]()
    for row in group:
        holders.update(row.holders)
    return Line(
        n_bytes=sum(row.n_bytes for row in group),
        n_blocks=sum(row.n_blocks for row in group),
        frames=most.frames,
        via=most.via,
        n_folded=most.n_folded,
        is_library=most.is_library,
        module=common_module(row.module for row in group),
        categories=tuple(dict.fromkeys(row.category for row in group)),
        holders=holders,
    )


def modules_by_place(
    recording: Recording, allocations: Allocations, assigned: Assigned, group: Array
) -> dict[int, str]:
    """The common module path of each *group* ≥ 0, over its allocations with a known module."""
    owners = owners_of(recording, allocations, assigned)
    # As one number each: pairs as rows take 18 times as long to sort.
    n_modules = max(len(owners.paths), 1)
    rows = np.flatnonzero(group >= 0)
    pairs = np.unique(group[rows].astype("i8") * n_modules + owners.module[rows])
    paths: dict[int, list[str]] = {}
    for which, module in zip((pairs // n_modules).tolist(), (pairs % n_modules).tolist(), strict=True):
        paths.setdefault(which, []).append(owners.paths[module])
    return {which: common_module(found) for which, found in paths.items()}


def module_words(path: str) -> str:
    """Return *path* for a sentence: a part of a ``Sequential`` has only a number, as in ``module 0``."""
    return f"module {path}" if path[:1].isdigit() and not path.endswith(" modules") else path


def common_module(paths: Iterable[str]) -> str:
    """``h.0.mlp`` and ``h.1.mlp`` → ``h.*.mlp``; ``h.0.mlp`` and ``h.0.attn.c`` → ``h.0.*``; '' for none."""
    known = [path.split(".") for path in dict.fromkeys(paths) if path]
    if not known:
        return ""
    common: list[str] = []
    for names in map(set, zip(*known, strict=False)):
        is_alike = len(names) == 1 or all(map(str.isdigit, names))
        common.append(next(iter(names)) if len(names) == 1 else "*")
        if not is_alike:
            break
    return ".".join(common) if len(known) == 1 or set(common) != {"*"} else f"{len(known)} modules"


def short_file(file: str) -> str:
    """``/home/me/net/model.py`` → ``net/model.py``: the last folder and the name tell files apart."""
    return "/".join([part for part in file.replace("\\", "/").split("/") if part][-2:]) or file


def place_words(file: str, line: int) -> str:
    """Format a location as ``net/model.py:31``."""
    return f"{short_file(file)}:{line}"


def frame_words(frame: Frame) -> str:
    """Format a frame as ``net/model.py:31 forward``."""
    return f"{place_words(frame.file, frame.line)} {frame.function}"


def line_words(line: Line) -> str:
    """Format a line as ``net/model.py:31 forward: linear ← net/train.py:60 train  [h.3.mlp]  +7 frames``."""
    calls = [frame_words(frame) for frame in line.frames[: 1 + CALLERS_SHOWN]]
    if line.is_library and calls:
        calls[0] = f"(library) {calls[0]}"
    if line.via:
        calls[:1] = [f"{calls[0]}: {line.via}"] if calls else [line.via]
    if not calls:
        return f"no Python line  +{line.n_folded} frames" if line.n_folded else NO_STACK
    hidden = line.n_folded + max(0, len(line.frames) - 1 - CALLERS_SHOWN)
    module = f"  [{line.module}]" if line.module else ""
    return " ← ".join(calls) + module + (f"  +{hidden} frames" if hidden else "")


_LONGEST = 400
"""Characters kept per line."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source file."""

    number: int
    text: str
    is_frame: bool
    """Whether it is the line that the frame names."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The lines around a frame's line."""

    lines: tuple[SourceLine, ...] = ()
    """The lines; empty where the file has no such line."""
    doubt: str = ""
    """Why the file is not, or may not be, the one that ran; '' without such a reason."""


def excerpt(
    text: str, frame: Frame, *, context: int = 2, modified_ns: int = 0, recorded_ns: int = 0
) -> Excerpt:
    """The frame's line in the *text* of its file, with *context* lines before and after it.

    A file that changed since the recording may show another line than the one that ran: the result says so.

    *modified_ns* is when the file was last changed, *recorded_ns* when the recording began; 0 where unknown.
    """
    lines = dict(enumerate(text.splitlines(), 1))
    if frame.line not in lines:
        return Excerpt(doubt=f"the file has {len(lines)} lines now: it is not the one that ran")
    doubt = "the file has changed since the recording began: the line may be another"
    doubt = doubt if 0 < recorded_ns < modified_ns else ""
    if not _may_hold(text, frame):
        doubt = f"the file has changed since the recording: line {frame.line} is not in {frame.function}()"
    return Excerpt(_near(lines, frame, context), doubt)


def kept_excerpt(
    lines: Mapping[int, str], frame: Frame, *, context: int = 2, modified_ns: int = 0, recorded_ns: int = 0
) -> Excerpt:
    """The frame's line among the *lines* that a recording keeps of its file; parameters as in ``excerpt``."""
    is_newer = 0 < recorded_ns < modified_ns
    doubt = "the file was changed while the program ran: the line may be another" if is_newer else ""
    return Excerpt(_near(lines, frame, context), doubt) if frame.line in lines else Excerpt()


def _near(lines: Mapping[int, str], frame: Frame, context: int) -> tuple[SourceLine, ...]:
    near = range(frame.line - context, frame.line + context + 1)
    return tuple(SourceLine(n, lines[n][:_LONGEST], n == frame.line) for n in near if n in lines)


def _may_hold(text: str, frame: Frame) -> bool:
    """Whether the line lies in a function or class of the frame's name; True where that cannot be decided."""
    if not frame.function.isidentifier():  # <module>, <lambda>, <listcomp> …
        return True
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = (node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == frame.function)
    return any(
        min([node.lineno, *(each.lineno for each in node.decorator_list)])
        <= frame.line
        <= (node.end_lineno or 0)
        for node in named
    )
