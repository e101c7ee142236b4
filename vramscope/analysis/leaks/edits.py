"""Writes the edit that ends a leak, in the program's own variables, from the statement that keeps it."""

import ast
from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

from vramscope.analysis.leaks.causes import ADVICE
from vramscope.analysis.leaks.holders import (
    Held,
    Statement,
    base_of,
    before_graph,
    every_of,
    keep_self,
    kept_at,
    kept_view,
    root_of,
    shared_root,
)
from vramscope.model.codes import LeakCause
from vramscope.model.holders import Word

KEEPS_NUMBERS = (LeakCause.RETAIN_GRAPH, LeakCause.LOSS_WITH_GRAPH)
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_SEVERAL = (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Starred)
_BESIDE = ("kept_at", "limit", "reset", "view", "hook", "end")
"""Words after a path that say more about it."""
_DETACHED = ("item", "detach", "cpu", "tolist", "numpy", "clone")


NO_SELF = (
    "a cache on a method keeps each object that it is called on (self), with all that it has: cache a "
    "function of the plain arguments instead, or keep the result on the object"
)
_ASK_AGAIN = "recorder.explain_leaks() in the training looks for it"
_OF_A_FILE = "a file does not have it: record the training with vramscope run"


def advice(
    cause: LeakCause, holder: str | None, example: Held | None, source: str, others: Sequence[Held] = ()
) -> str:
    """Return the edit, with the program's own variables if its statement was found; else a general one.

    *others* are paths to other blocks of the leak; one of them may show that the kept value is a number.
    """
    again = _OF_A_FILE if source == "snapshot" else _ASK_AGAIN
    what = ", loss.item()" if cause in KEEPS_NUMBERS else ", by .detach().cpu(), or drop it after use"
    what += f", in {holder}" if holder else ""
    general = ADVICE[cause].format(variable=holder or "it", statement=what, again=again)
    if example is None:
        return general
    kept = kept_at(example)
    special = _of_cause(cause, example, others, kept)
    if special is not None:
        return special
    if cause == LeakCause.REFERENCE_CYCLE and example.words[0][-1] == "off":
        return f"{general}; the collector is off (gc.isenabled() is False): gc.collect() at times frees them"
    is_tensor = example.grows_at < 0 or _is_item_a_tensor(example)
    wrapper = _wrapper(cause, [example, *others])
    edit = None if kept is None else _edited(kept.code, wrapper) if is_tensor else _state_on_cpu(kept.code)
    if edit is None:
        return general
    return ADVICE[cause].format(variable=holder or "it", statement=f": {edit}", again=again)


def _of_cause(cause: LeakCause, example: Held, others: Sequence[Held], kept: Statement | None) -> str | None:
    """Return the edit of a state, a metric or a function that keeps tensors; None for others."""
    if cause == LeakCause.UNDETACHED_STATE:
        return f"cut the graph between steps: {_detached_state(example, others, kept)}"
    reset = example.first("reset")
    if cause in (LeakCause.KEPT_OUTPUT, LeakCause.CACHE) and reset is not None:
        also = ", or make it with compute_on_cpu=True" if len(reset) > 2 else ""
        return f"call {reset[1]}.reset() once its result is computed, as after every epoch{also}"
    if cause in (LeakCause.KEPT_OUTPUT, LeakCause.CACHE) and kept_view(others) is not None:
        bound = ADVICE[cause].format(variable=as_written(example, others)) if cause is LeakCause.CACHE else ""
        return f"{_copied(example, others, kept)}{bound and f'; {bound}'}"
    if cause == LeakCause.KEPT_MODEL and keep_self(others):
        return NO_SELF
    inside = _names_in_function(example, others)
    if cause == LeakCause.KEPT_OUTPUT and inside:
        what = f"{inside[0]}.detach().cpu(), or numbers"
        return f"the function in {as_written(example, others)} keeps {', '.join(inside)}: give it {what}"
    return None


def _copied(example: Held, others: Sequence[Held], kept: Statement | None) -> str:
    """Return the statement with a copy of the part that it keeps."""
    has_graph = any("graph" in word for each in others for word in each.words if word[0] in ("graph", "view"))
    wrapper = ".detach().clone()" if has_graph else ".clone()"
    edit = _edited(kept.code, wrapper) if kept is not None and _is_item_a_tensor(example) else None
    where = edit or f"{wrapper} of what goes into {as_written(example, others)}"
    return f"copy the part, so that the whole is freed: {where}"


def as_written(example: Held, others: Sequence[Held] = ()) -> str:
    """Return the holder as the program writes it, also for a path through a library's internals.

    Of *others*, which are paths to other blocks, it is the part that they share.
    """
    text = shared_root([each for each in others if base_of(each) == base_of(example)] or [example])
    if text == base_of(example) and example.grows_at > 0 and example.words[example.grows_at][0] == "key":
        text = every_of(example) or text  # of several dicts, each gets keys
    if example.has("reset"):  # one metric has several lists
        beside = sorted({root_of(each) for each in others} - {text})
        text += f" (and {', '.join(beside)})" if beside else ""
    named = before_graph(example)[: example.grows_at] if example.grows_at > 0 else before_graph(example)
    attributes = [word for word in named if word[0] == "attribute"]
    if not any(str(word[1]).startswith("_") for word in attributes[:-1]):
        return text
    last, kept = attributes[-1], kept_at(example)
    target = None if kept is None else _target(kept.code)
    if target is not None and target.rpartition(".")[2] == str(last[1]):
        return target
    owner = str(last[2]) if len(last) > 2 else ""
    return f"self.{last[1]} of {owner}" if owner else root_of(example)


def _wrapper(cause: str, holdings: Sequence[Held]) -> str:
    if cause not in KEEPS_NUMBERS:
        return ".detach().cpu()"
    entered = [word[2] for each in holdings if (word := each.first("graph")) and len(word) > 2]
    is_number = all(numel == 1 for numel in entered) and (bool(entered) or cause == LeakCause.LOSS_WITH_GRAPH)
    return ".item()" if is_number else ".detach()"


def _is_item_a_tensor(example: Held) -> bool:
    """Return whether what the container gets is a tensor itself, not an object with one, as a Future."""
    inside = before_graph(example)[example.grows_at + 1 :]
    return all(word[0] in ("grad", *_BESIDE) or word[:2] == ("part", "view") for word in inside)


def _names_in_function(example: Held, others: Sequence[Held]) -> list[str]:
    """Return the variables that keep the blocks, if what the container gets is a function."""
    names: dict[str, None] = {}
    for each in (*others, example):
        inside = each.words[each.grows_at + 1 :] if each.grows_at >= 0 else ()
        word = next((word for word in inside if word[0] not in ("part", "bound")), None)
        if word is not None and word[0] in ("closure", "default"):
            names[str(word[1])] = None
    return [name for name in names if name]


def _detached_state(example: Held, others: Sequence[Held], kept: Statement | None) -> str:
    edit = None if kept is None else _detached_assignment(kept.code)
    if edit is not None:
        return edit
    words = before_graph(example)
    at = next((at for at, word in enumerate(words) if at and word[0] in ("item", "key")), None)
    variable, base = root_of(example), base_of(example)
    if at is None or (len({root_of(each) for each in others}) == 1 and variable != base):
        return f"{variable} = {variable}.detach()"
    ways = [_inside(each) for each in (example, *others) if base_of(each) == base]
    if fields := _fields(*(way[1:] for way in ways)):
        each = f"{base}.values()" if words[at][0] == "key" else base
        cut = "; ".join(f"each.{field} = each.{field}.detach()" for field in fields)
        return f"for each in {each}: {cut}"
    containers = {tuple((kind, *owner[:1]) for kind, _, *owner in way) for way in ways}
    is_plain = len(containers) == 1 and {word[0] for word in ways[0]} <= {"key", "item"}
    return f"{base} = {_cut(base, *containers.pop())}" if is_plain else f"detach() every tensor in {base}"


def _inside(holding: Held) -> list[Word]:
    """Return the words of a path from the first container to the tensor."""
    words = [word for word in before_graph(holding)[1:] if word[0] not in ("part", *_BESIDE)]
    return [*dropwhile(lambda word: word[0] not in ("item", "key"), words)]


def _cut(name: str, *containers: Word) -> str:
    """Return an expression for *name* with the tensors in its containers detached."""
    if not containers:
        return f"{name}.detach()"
    (kind, *owner), *inner = containers
    part = "part" if inner else "state"
    cut = _cut(part, *inner)
    if kind == "key":
        return f"{{name: {cut} for name, {part} in {name}.items()}}"
    return f"[{cut} for {part} in {name}]" if owner == ["list"] else f"tuple({cut} for {part} in {name})"


def _fields(*ways: Sequence[Word]) -> list[str]:
    """Return the attributes of a container's objects that are the state, as of a cache's layers."""
    return list(dict.fromkeys(str(way[0][1]) for way in ways if [word[0] for word in way] == ["attribute"]))


def _detached_assignment(code: str) -> str | None:
    """Return an assignment whose value is computed in place, detached; None for other statements."""
    node = _statement(code)
    if not isinstance(node, ast.Assign) or len(node.targets) > 1 or isinstance(node.targets[0], ast.Tuple):
        return None
    value = node.value
    if isinstance(value, ast.DictComp):
        value = value.value
    elif isinstance(value, ast.ListComp):
        value = value.elt
    elif not isinstance(value, ast.BinOp):
        return None
    return None if isinstance(value, _SEVERAL) or _is_detached(value) else _wrapped(code, value, ".detach()")


def _statement(code: str) -> Any:
    try:
        body: Sequence[ast.stmt] = ast.parse(code).body
    except SyntaxError:  # cut off, or the first of several lines
        return None
    if len(body) != 1:
        return None
    only = body[0]
    return only.value if isinstance(only, ast.Expr) else only


def _target(code: str) -> str | None:
    """Return the target of a statement: ``self.cache`` in ``self.cache[step] = hidden``.

    The same for ``self.cache.append(hidden)``; None for other statements.
    """
    node = _statement(code)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        found: ast.expr = node.func.value
    elif isinstance(node, ast.Assign):
        found = node.targets[0]
    elif isinstance(node, ast.AugAssign):
        found = node.target
    else:
        return None
    while isinstance(found, ast.Subscript):
        found = found.value
    return ast.unparse(found)


def _edited(code: str, wrapper: str) -> str | None:
    """Return the statement with *wrapper* after the value that it keeps; None if that is not one tensor."""
    node = _statement(code)
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        value = node.args[0]
    elif isinstance(node, ast.Assign | ast.AugAssign):
        value = node.value
    else:
        return None
    if isinstance(value, (*_SEVERAL, ast.Lambda)):
        return None
    if _is_detached(value):
        is_detached_only = value.func.attr == "detach"  # type: ignore[attr-defined]
        rest = wrapper.removeprefix(".detach()")
        return _wrapped(code, value, rest) if is_detached_only and rest in (".cpu()", ".clone()") else None
    return _wrapped(code, value, wrapper)


def _state_on_cpu(code: str) -> str | None:
    """Return the statement with a copy of a ``state_dict()`` on the CPU; None if it keeps none."""
    for node in ast.walk(_statement(code) or ast.Module([], [])):
        given: Any = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else None
        is_copy = given is not None and ast.unparse(node.func).endswith(("copy", "dict"))  # type: ignore[attr-defined]
        if is_copy and getattr(getattr(given, "func", None), "attr", "") == "state_dict":
            copy, state = (ast.get_source_segment(code, each) or "" for each in (node, given))
            return code.replace(copy, f"{{name: each.cpu() for name, each in {state}.items()}}")
    return None


def _wrapped(code: str, value: ast.expr, wrapper: str) -> str | None:
    text, target = ast.unparse(value), _target(code) or ""
    new = f"{text if isinstance(value, _SIMPLE) else f'({text})'}{wrapper}"
    if wrapper == ".item()" and "." in target and not isinstance(_statement(code), ast.Call):
        new = f"float({text})"  # others may give the same method a number, which has no item()
    # The segment of the source, so that the rest stays as it was written.
    segment = ast.get_source_segment(code, value)
    if segment is None:
        return None
    before, _, after = code.rpartition(segment)
    return before + new + after


def _is_detached(value: ast.expr) -> bool:
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return is_method and value.func.attr in _DETACHED  # type: ignore[attr-defined]
