"""Finds statements whose result is much larger than its operands and, with its gradients, much of the peak.

What a statement does follows from its text, as the recording keeps it: all pairs of rows, labels as one-hot
vectors, copies of what broadcasting would read in place.
"""

import ast
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories import assign, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame, SourceFile

_LEAST_SHARE, _LEAST_BYTES = 0.15, 1 << 20
_NO_RESULTS = (
    Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.WORKSPACE,
)  # fmt: skip
_BESIDE = ", with other tensors of that size here and in backward"
_FARTHEST = 4
"""Lines before and after that a statement may have: as many as are kept."""
_IN_PLACE = frozenset({"expand", "repeat", "detach", "float", "half", "to", "contiguous", "clone"})
"""Methods whose result has the dimensions of the tensor."""
_VIEWS = ("unsqueeze", "squeeze", "expand_as", "permute", "transpose", "view")
_HARMLESS = _IN_PLACE | {
    *(*_VIEWS, "reshape", "flatten", "type_as"),
    *("pow", "square", "abs", "sqrt", "exp", "neg", "clamp", "sum", "mean", "norm", "min", "max", "bool"),
    *("size", "int", "len", "one_hot", "repeat_interleave"),
}
"""Calls beside which nothing else in a statement makes a large tensor."""
_PARTS: tuple[Any, ...] = (ast.Call, ast.BinOp)


def wide_results(recording: Recording) -> list[Finding]:
    """Find statements that make tensors wider, if blocks of that size are much of the peak.

    What the statement itself made counts, and blocks of the same size of its function, or of backward.
    """
    found, level, stacks = lifetimes(recording), timeline(recording).allocated_bytes, recording.stacks
    if not recording.sources or not len(found):
        return []
    at = int(level.argmax())
    least = max(_LEAST_BYTES, _LEAST_SHARE * int(level[at]))
    counts = ~np.isin(undivided(assign(recording, found)).category, _NO_RESULTS)
    in_backward = lives_of(recording, found).phase == Phase.BACKWARD
    said: dict[int, Finding] = {}
    # The innermost frame: what a layer makes that a line calls is the layer's.
    places: dict[Frame, list[int]] = {}
    for stack in np.unique(found.stack_id[found.size >= _LEAST_BYTES]).tolist():
        places.setdefault(stacks.frame(stack), []).append(stack)
    for frame, mine in places.items():
        source = recording.sources.get(frame.file, SourceFile())
        # A file that changed meanwhile may have other code at a line than what ran.
        is_what_ran = source.modified_ns <= int(recording.trace.time_ns[0])
        kind, text = _statement(source.lines, frame.line) if is_what_ran else ("", "")
        if not kind:
            continue
        own = np.isin(found.stack_id, mine) & counts
        size = int(found.size[own].max(initial=0))
        if kind == "products" and size in (0, int(found.size[own][-1:].sum())):
            continue  # the last is the product itself, which is no copy of an operand
        near = [stack for other, those in places.items() if other[:2] == frame[:2] for stack in those]
        rows = (found.size == size) & (in_backward | np.isin(found.stack_id, near)) & (kind != "one_hot")
        rows = found.allocated_at(at) & (rows & counts | own)
        n_bytes = int(found.block_size[rows].sum())
        if n_bytes >= least and size not in said:
            share, kind = f"{100 * n_bytes / int(level[at]):.0f}", f"{kind}.{FindingKind.WIDE_RESULTS}"
            beside = _BESIDE if found.block_size[own & rows].sum() < n_bytes else ""
            said[size] = worded(kind, n_bytes, frame, share=share, text=text, block_bytes=size, beside=beside)
    return list(said.values())


def _statement(lines: Mapping[int, str], line: int) -> tuple[str, str]:
    """Return how the statement at a line makes a tensor wider, and its text; '' if it does not."""
    inserted: dict[str, int | None] = {}
    for number in range(line - _FARTHEST, line):
        node = _parsed(lines, number, number)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            inserted[node.targets[0].id] = _inserted(node.value, inserted)
    spans = ((line - n, line - n + length) for length in range(_FARTHEST + 1) for n in range(length + 1))
    node = next(filter(None, (_parsed(lines, *span) for span in spans)), None)
    return ("", "") if node is None else (_kind(node, inserted), lines[line].strip())


def _parsed(lines: Mapping[int, str], first: int, last: int) -> ast.stmt | None:
    """Return the one statement in the lines; None if they are no whole one."""
    try:
        body = ast.parse(dedent("\n".join(lines[number] for number in range(first, last + 1)))).body
    except (KeyError, SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return body[0] if len(body) == 1 else None


def _kind(statement: ast.stmt, inserted: Mapping[str, int | None]) -> str:
    """Return how a statement makes a tensor wider; '' if it does not, or does more than that."""
    calls, of_two = ([each for each in ast.walk(statement) if isinstance(each, kind)] for kind in _PARTS)
    names = {_name(call) for call in calls}
    if "matmul" in names or any(isinstance(node.op, ast.MatMult) for node in of_two):
        is_alone = len(of_two) + ("matmul" in names) == 1 and names <= {"matmul", *_VIEWS}
        return "products" if is_alone else ""
    if not names <= _HARMLESS:
        return ""
    for node in of_two:
        if isinstance(node.op, ast.Sub | ast.Mult | ast.Add):
            left, right = _inserted(node.left, inserted), _inserted(node.right, inserted)
            if left is not None and right is not None and left != right and (left < 0) == (right < 0):
                return "differences" if isinstance(node.op, ast.Sub) else "pairs"
    chain = _chain(getattr(statement, "value", None))
    if "one_hot" in chain:
        return "one_hot"
    is_filled = "expand" in chain and {"contiguous", "clone", "reshape"} & {*chain[: chain.index("expand")]}
    # Once along every dimension is a copy as it is, like clone().
    times = {getattr(each, "value", None) for call in calls if _name(call) == "repeat" for each in call.args}
    return "copies" if ("repeat" in chain and times != {1}) or is_filled else ""


def _chain(node: Any) -> list[str]:
    """Return the calls of an expression that is nothing else, the last first: ``x.expand(3).clone()``."""
    return [_name(node), *_chain(getattr(node.func, "value", None))] if isinstance(node, ast.Call) else []


def _inserted(node: ast.AST, known: Mapping[str, int | None]) -> int | None:
    """Return where an expression inserts a dimension of one element: ``x[:, None]``, ``x.unsqueeze(1)``."""
    while isinstance(node, ast.Call) and _name(node) in _IN_PLACE:
        node = getattr(node.func, "value", node.func)
    if isinstance(node, ast.Call) and _name(node) == "unsqueeze" and node.args:
        number = ast.unparse(node.args[-1])
        return int(number) if re.fullmatch(r"-?\d", number) else None
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values = [part.value if isinstance(part, ast.Constant) else 0 for part in parts]
        is_from_end = any(value is ... for value in values)
        return values.index(None) - len(values) * is_from_end if values.count(None) == 1 else None
    return known.get(node.id) if isinstance(node, ast.Name) else None


def _name(node: Any) -> str:
    function = getattr(node, "func", None)
    return str(getattr(function, "attr", getattr(function, "id", "")))


ANALYSIS = asking("Which statements make tensors much larger than their operands?", wide_results, list)
