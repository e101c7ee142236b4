"""The names that files and lines of two runs have in common, where a run lies elsewhere or was edited."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from os.path import commonpath
from typing import Any, NamedTuple

from vramscope.analysis.folding import user_files
from vramscope.analysis.lines import NO_STACK, frame_words
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame
from vramscope.model.table import Array


class CodeLine(NamedTuple):
    """A line of the program, and the library function that it called."""

    file: str
    line: int
    function: str
    via: str
    is_library: bool = False
    """Whether it is a library's line, because no frame of the stack is the user's."""


def common_names(before: Recording, after: Recording) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return functions that give the files of each run the names that both runs have.

    They stay as they are, or are relative to the root of each run where no file is the same.
    """
    one, other = (user_files(each.stacks) - {""} for each in (before, after))
    if one & other or not (one and other):
        return _as_it_is, _as_it_is
    return _below(sorted(one)), _below(sorted(other))


def in_package(file: str) -> str:
    """Return a library's file without its folder: ``accelerate/optimizer.py``."""
    return re.split(r"(?:site|dist)-packages/", file.replace("\\", "/"))[-1]


def moved_lines(old: Mapping[Hashable, Array], new: Mapping[Hashable, Array]) -> dict[Hashable, Hashable]:
    """New code lines → old ones of an edited file: a function's lines in order, if as many as before."""
    gone, come = _by_function(old.keys() - new.keys()), _by_function(new.keys() - old.keys())
    moved: dict[Hashable, Hashable] = {}
    for function, places in come.items():
        if len(gone.get(function, ())) == len(places):
            moved |= dict(zip(places, gone[function], strict=True))
    return moved


def _by_function(places: Any) -> dict[tuple[str, str, str], list[CodeLine]]:
    found: dict[tuple[str, str, str], list[CodeLine]] = {}
    for place in sorted(places):
        found.setdefault((place.file, place.function, place.via), []).append(place)
    return found


def _as_it_is(file: str) -> str:
    return file


def _below(files: Sequence[str]) -> Callable[[str], str]:
    folders = [file.replace("\\", "/").rpartition("/")[0] for file in files]
    try:
        root = commonpath(folders)
    except ValueError:  # some absolute, some not
        return _as_it_is
    return lambda file: file.replace("\\", "/").removeprefix(root).lstrip("/")


def line_name(place: CodeLine) -> str:
    """Return a line of the program in words, with the library function that it called."""
    if not (place.file or place.via):
        return NO_STACK
    if not place.file:
        return place.via
    library = "(library) " if place.is_library else ""
    via = f": {place.via}" if place.via else ""
    return f"{library}{frame_words(Frame(place.function, place.file, place.line))}{via}"
