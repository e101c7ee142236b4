"""Which lines of the user's own code do stacks come from? Frames of torch and the standard library folded."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.model.stacks import StackBuilder, Stacks

# torch's own files, wherever it is installed, Python's, and C++. Other packages (transformers, …) are
# kept: their line is what a user of them looks for.
_FRAMEWORK = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|pytorch)/(?:torch|torchgen|functorch|triton|vramscope)/"
    r"|(?:^|/)torch/(?:nn|autograd|optim|utils|cuda|distributed|amp|func|fx|_\w+|\w+\.py)"
    r"|/torchinductor_|/lib/python3[^/]*/(?!site-packages/|dist-packages/)|/python3\d*/lib/(?!site-packages/)"
    r"|^<frozen |^<string>$|^<eval_with_key>|\.(?:cpp|cc|c|h|cu|so|S|o)(?:\.[0-9.]+)?$|^\?\?$|^$",
    re.IGNORECASE,
)

_PLUMBING = frozenset(
    {
        "__call__",
        "__torch_dispatch__",
        "__torch_function__",
        "_call_impl",
        "_fn",
        "_wrapped_call_impl",
        "decorate_context",
        "inner",
        "wrapper",
    }
)
"""Functions of the framework that pass a call on: their names say nothing of what was called."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Stacks without the frames of the framework."""

    stacks: Stacks
    of: NDArray[Any]
    """By original stack_id: the folded one; 0 where no frame was the user's."""
    via: NDArray[Any]
    """By original stack_id: index into ``strings`` of the framework's function called last that is more than
    plumbing, 0 where none."""
    strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holders:
    """Live bytes by the user's line: one row per (folded stack, framework function), largest first."""

    folded_id: NDArray[Any]
    via: NDArray[Any]
    """Index into ``Folded.strings``."""
    n_bytes: NDArray[Any]
    count: NDArray[Any]
    example: NDArray[Any]
    """The original stack_id that holds most of the row."""

    @property
    def total_bytes(self) -> int:
        """All that is live."""
        return int(self.n_bytes.sum())

    @property
    def total_count(self) -> int:
        """Allocations that are live."""
        return int(self.count.sum())


def is_framework(file: str) -> bool:
    """Whether a file belongs to torch, to Python or to C++."""
    return _FRAMEWORK.search(file.replace("\\", "/")) is not None


def fold(stacks: Stacks) -> Folded:
    """One pass over the frames, about 1 µs each: parents precede their children."""
    ours = [not is_framework(text) for text in stacks.strings]
    python = [text.endswith(".py") for text in stacks.strings]
    speaks = [text not in _PLUMBING for text in stacks.strings]
    builder = StackBuilder()
    of, via = [0], [0]
    columns = (stacks.parent, stacks.function, stacks.file, stacks.line)
    for parent, function, file, line in zip(*(column[1:].tolist() for column in columns), strict=True):
        if ours[file]:
            of.append(builder.push(of[parent], stacks.strings[function], stacks.strings[file], line))
            via.append(0)
        else:
            of.append(of[parent])
            via.append(function if python[file] and speaks[function] else via[parent])
    return Folded(builder.build(), np.array(of), np.array(via), stacks.strings)


def holders(folded: Folded, stack_id: NDArray[Any], n_bytes: NDArray[Any], count: NDArray[Any]) -> Holders:
    """Rows by original stack, joined by what the user would call the same place."""
    pairs = np.stack([folded.of[stack_id], folded.via[stack_id]], axis=1).reshape(-1, 2)
    unique, group = np.unique(pairs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    total, number = np.zeros(len(unique), "i8"), np.zeros(len(unique), "i8")
    np.add.at(total, group, n_bytes)
    np.add.at(number, group, count)
    example = np.zeros(len(unique), "i8")
    by_size = np.argsort(n_bytes, kind="stable")
    example[group[by_size]] = stack_id[by_size]
    order = np.argsort(-total, kind="stable")
    return Holders(unique[order, 0], unique[order, 1], total[order], number[order], example[order])
