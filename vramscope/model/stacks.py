"""Call stacks, each stored once under its stack_id."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from vramscope.model.table import Int32, Table


class Frame(NamedTuple):
    """One call: function, file and line."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Stacks(Table):
    """A tree of frames: a stack is the node of its innermost frame, and the parents are its callers.

    Row 0 is the empty stack. Parents precede their children.
    """

    parent: Int32
    """Row of the calling frame; 0 for an outermost frame."""
    function: Int32
    """Index into ``strings``."""
    file: Int32
    """Index into ``strings``."""
    line: Int32
    strings: tuple[str, ...]

    def frame(self, stack_id: int) -> Frame:
        """The innermost frame of a stack."""
        return Frame(
            self.strings[self.function[stack_id]], self.strings[self.file[stack_id]], int(self.line[stack_id])
        )

    def frames(self, stack_id: int) -> tuple[Frame, ...]:
        """All frames of a stack, innermost first; empty for stack 0."""
        found = []
        while stack_id:
            found.append(self.frame(stack_id))
            stack_id = int(self.parent[stack_id])
        return tuple(found)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The lines of one file around those that stacks name."""

    lines: Mapping[int, str] = field(default_factory=dict)
    """Text by line number, from 1 on."""
    n_lines: int = 0
    """The number of lines of the whole file."""
    modified_ns: int = 0
    """When the file was last changed when it was read, in Unix nanoseconds."""


Sources: TypeAlias = Mapping[str, SourceFile]
"""Lines of the program by path of the file."""


class StackBuilder:
    """Collects stacks, each once; it only grows, so that rows already written stay valid."""

    __slots__ = ("_ids", "_nodes", "_strings", "depth")

    def __init__(self, depth: int | None = None) -> None:
        self.depth = depth
        """The number of innermost frames to keep of each stack that is read; None for all."""
        self._nodes: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self._ids: dict[tuple[int, int, int, int], int] = {}
        self._strings: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, frames: Iterable[Frame | tuple[str, str, int]]) -> int:
        """Add a stack, given innermost frame first, and return its stack_id."""
        stack_id = 0
        for function, file, line in reversed(list(frames)):
            stack_id = self.push(stack_id, function, file, line)
        return stack_id

    def push(self, parent: int, function: str, file: str, line: int) -> int:
        """Add a frame that *parent* calls and return its stack_id."""
        node = (parent, self._string(function), self._string(file), line)
        stack_id = self._ids.get(node)
        if stack_id is None:
            stack_id = self._ids[node] = len(self._nodes)
            self._nodes.append(node)
        return stack_id

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def rows(self, start: int = 1) -> list[tuple[int, str, str, int]]:
        """``(parent, function, file, line)`` of each node from *start* on, for an append-only writer."""
        # Copy the nodes before their strings: another thread may be adding both.
        nodes = self._nodes[start:]
        strings = list(self._strings)
        return [(p, strings[n], strings[f], line) for p, n, f, line in nodes]

    def build(self) -> Stacks:
        """The table of all stacks collected so far."""
        nodes = np.array(self._nodes, dtype="i4").reshape(-1, 4)
        columns = {name: nodes[:, i].copy() for i, name in enumerate(Stacks.DTYPES)}
        return Stacks(**columns, strings=tuple(self._strings))


def stacks_of(*stacks: Sequence[Frame | tuple[str, str, int]]) -> Stacks:
    """Build the given stacks, each innermost frame first, under the ids 1, 2, … of their nodes."""
    builder = StackBuilder()
    for frames in stacks:
        builder.add(frames)
    return builder.build()
