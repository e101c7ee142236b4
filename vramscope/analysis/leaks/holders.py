"""Holders of allocations: the paths of references that the recorder wrote into the recording."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

import numpy as np

from vramscope.analysis.categories import last_known
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.shared_results import memoized
from vramscope.model.holders import Holding, Word
from vramscope.model.recording import Recording
from vramscope.model.table import Array

_CONTAINERS = ("item", "key")
_NAMES = ("attribute", "closure", "optimizer", "grad")
_NAMELESS = ("part", "bound", "traceback", "end")
OF_NOTEBOOKS = "InteractiveTB"
"""The attribute by which IPython keeps the traceback of the last cell that failed."""
LEAST_ITEMS_PER_STEP = 0.5
"""Items of a growing container that begin with another step, per step with blocks in it. A list of each
step's tensors has 1.0; the two tensors of a recurrent state, after seven steps, 0.29."""
LEAST_STEPS_HELD = 3
"""Steps of which a holder of a leak keeps blocks at least."""
_OPTIMIZER_S_OWN = ("state", "param_groups")


@dataclass(frozen=True, slots=True)
class Held(Holding):
    """The path of references to one block, and the container on it that grows."""

    grows_at: int = -1
    """Index of the word for the item of that container; -1 if no container on the path was seen to grow."""
    n_named: int = 0
    """How many words name what grows: all before that item, or before the key of each list in a dict."""
    n_bytes: int = 1
    """Size of the block."""


def held(recording: Recording, found: Allocations, born: Array) -> Mapping[int, Held]:
    """Return the last recorded holder of each row of *found*; *born* is the step of each row."""
    grown = _with_growing_containers(recorded_holdings(recording, found, at_end=False), born)
    return {row: replace(each, n_bytes=int(found.block_size[row])) for row, each in grown.items()}


def _with_growing_containers(holdings: Mapping[int, Holding], born: Array) -> dict[int, Held]:
    """Mark on each path the container that has other items for other steps; the outermost of several.

    The lists of one dict count together, too: each of its keys may come again after many steps only.
    """
    first: dict[tuple[Word, ...], dict[Any, int]] = defaultdict(dict)
    last: dict[tuple[Word, ...], dict[Any, int]] = defaultdict(dict)
    seen: dict[tuple[Word, ...], set[int]] = defaultdict(set)
    ways = {row: _containers(holding) for row, holding in holdings.items()}
    for row, containers in ways.items():
        step = int(born[row])
        for _, _, way, item in containers:
            seen[way].add(step)
            first[way][item] = min(first[way].get(item, step), step)
            last[way][item] = max(last[way].get(item, step), step)
    n_steps = {way: len(_first_steps(of_item)) for way, of_item in first.items()}
    apart = {way for way, of_item in first.items() if _are_apart(of_item, last[way])}
    # The two tensors of a recurrent state lead to all steps, but their number never grows.
    n_steps = {
        way: n for way, n in n_steps.items() if way in apart or n >= LEAST_ITEMS_PER_STEP * len(seen[way])
    }
    grown = {}
    for row, containers in ways.items():
        most = [min(n_steps.get(way, 0), LEAST_STEPS_HELD) for _, _, way, _ in containers]
        usual = max(containers, key=lambda each: n_steps.get(each[2], 0), default=(-1,))[0]
        at = next((each[0] for each in containers if each[2] in apart), usual)
        own = [i for i, each in enumerate(containers) if each[0] == at and most[i] > 1]
        # One list by itself has a name of its own.
        named = containers[max(own, key=most.__getitem__)][1] if own else 0
        grown[row] = Held(holdings[row].words, at if own else -1, named)
    return grown


def _are_apart(first: Mapping[Any, int], last: Mapping[Any, int]) -> bool:
    """Return whether each item leads to blocks of as many steps, later ones than the item before it.

    One turn of the program is then several steps, as of the forwards of one inference. Of a state of the last
    few steps the oldest item leads to the steps of all others before.
    """
    spans = [(step, last[item]) for item, step in first.items() if item[0] != "all"]
    lengths = [end - begin + 1 for begin, end in spans]
    is_even = len(spans) >= LEAST_STEPS_HELD and max(lengths) <= 2 * median(lengths)
    return is_even and all(a[1] <= b[0] and a[0] < b[0] for a, b in pairwise(spans))


def _first_steps(of_item: Mapping[Any, int]) -> set[int]:
    """Return the steps in which items came; a key of a dict was there before those that follow it.

    What several containers get counts where one gets it later than a step after its first item.
    """
    begun: dict[Any, int] = {}
    for item, step in of_item.items():
        begun[item[:-1]] = min(begun.get(item[:-1], step), step)
    if all(item[0] == "all" for item in of_item):
        return {max(step, begun[item[:-1]] + 1) - 1 for item, step in of_item.items()}
    steps = [*of_item.values()]
    is_key = all(item[0] == "key" for item in of_item)
    return {*accumulate(reversed(steps), min)} if is_key else {*steps}


def _containers(holding: Holding) -> list[tuple[int, int, tuple[Word, ...], Any]]:
    """Return each container before autograd's graph: its word's index, words of its name, path, item.

    Then each again as one of those that a container around it leads to.
    """
    words = before_graph(holding)
    # Other parts of a word, such as a frame's current line, differ from search to search.
    names = tuple(
        (str(word[0]), str(word[1]), *map(str, word[3:] if word[0] in _CONTAINERS else ())) for word in words
    )
    inside = [at for at, word in enumerate(words) if word[0] in _CONTAINERS]
    found: list[tuple[int, int, tuple[Word, ...], Any]] = [(at, at, names[:at], names[at]) for at in inside]
    for at in inside[1:]:
        if words[at][2] != "tuple":
            way = tuple(("", "") if i in inside else name for i, name in enumerate(names[:at]))
            found.append((at, inside[0], (*way, ("all", "")), ("all", *names[inside[0] : at + 1])))
    return found


@memoized
def recorded_holdings(recording: Recording, found: Allocations, *, at_end: bool = True) -> dict[int, Holding]:
    """Return the last path to each row of *found* that has one.

    When a block has ended, the hooks and variables that fill a container may be gone. So without *at_end* its
    paths count only where there are no others.
    """
    holders = recording.holders
    first = holders.first_rows()
    if not len(first):
        return {}
    end = np.append(first[1:], len(holders))
    kinds = np.array([name == "end" for name in holders.names])[holders.kind]
    within = np.setdiff1d(np.arange(len(first)), np.searchsorted(first, np.flatnonzero(kinds), "right") - 1)
    if len(within) and not at_end:
        first, end = first[within], end[within]
    path = last_known(found, holders.address[first], holders.event[first])
    rows = np.flatnonzero(path >= 0)
    # As the search came to them: what a dict has had for longer comes first.
    return {
        row: holders.holding(int(first[path[row]]), int(end[path[row]]))
        for row in rows[np.argsort(path[rows], kind="stable")].tolist()
    }


def older_half(rows: Array, known: Mapping[int, Held]) -> list[Held]:
    """Return the holders of the older half of *rows*: the newest may be the current step's own."""
    held_rows = [row for row in rows.tolist() if row in known]
    return [known[row] for row in held_rows[: (len(held_rows) + 1) // 2]]


def is_of_optimizer(holding: Holding) -> bool:
    """Return whether the path leads through what every optimizer has, not through a subclass's attribute."""
    return any(word[0] == "optimizer" and word[1] in _OPTIMIZER_S_OWN for word in before_graph(holding))


def is_of_kept_optimizer(holding: Held) -> bool:
    """Return whether a container that grows leads to the optimizer: it keeps several of them."""
    kinds = [word[0] for word in holding.words]
    return "optimizer" in kinds and 0 <= holding.grows_at < kinds.index("optimizer")


def keep_self(holdings: Sequence[Holding]) -> bool:
    """Return whether an ``lru_cache`` leads to most blocks by an object that it was given, as by self."""
    ways = [str(each.words).partition("lru_cache")[2] for each in holdings]
    return 2 * sum("'attribute'" in way for way in ways) > len(ways)


def group_of(holding: Held) -> str:
    """Return the group of a block's leak: its holder, all gradients of a model, or all of an optimizer."""
    words = before_graph(holding)
    kinds = [word[0] for word in words]
    reset = holding.first("reset")
    if reset is not None:
        return f"{reset[1]} (metric)"
    if is_of_optimizer(holding) and not is_of_kept_optimizer(holding):
        return f"{_written(words[: kinds.index('optimizer')])} (optimizer)"
    if "grad" in kinds and "graph" in [word[0] for word in holding.words]:
        return "(graphs of gradients)"
    if words[0][0] == "unreachable":
        return "(graphs of gradients)" if words[0][1] in ("Tensor", "Parameter") else "(cycles)"
    if "grad" in kinds and holding.grows_at < 0:
        return f"{words[0][1]} (gradients)"
    # One variable carries the states of all keys from step to step.
    return base_of(holding) if holding.has("graph") and holding.grows_at < 0 else root_of(holding)


def root_of(holding: Held) -> str:
    """Return the variable or attribute that holds many blocks, as the program writes it.

    An example is ``trainer.history``.
    """
    text, ctx = _written(_named_part(holding)), holding.first("ctx")
    return text if ctx is None else f"ctx.{ctx[1]} of {ctx[-1]} (by {text})"


def base_of(holding: Holding) -> str:
    """Return the variable or attribute whose item leads to the block: ``log`` of ``log['loss'][3]``."""
    words = before_graph(holding)
    at = next((at for at, word in enumerate(words) if at and word[0] in _CONTAINERS), len(words))
    return _written(words[:at])


def holder_name(holding: Holding) -> str:
    """Return the variable or attribute that keeps a block, be it within an exception's traceback."""
    first, kinds = holding.words[0], [word[0] for word in holding.words]
    if any(word[1] == OF_NOTEBOOKS for word in holding.words):
        return OF_NOTEBOOKS
    if first[0] in ("unreachable", "unnamed"):
        return f"an {first[0]} {first[1]}"
    return base_of(Holding(holding.words[: kinds.index("traceback")]) if "traceback" in kinds else holding)


def holder_words(bytes_by_name: Mapping[str, int]) -> str:
    """Return the names that keep blocks, the most bytes first: ``model``, or ``log, history and 2 more``."""
    by_name = Counter(bytes_by_name)
    if len(by_name) > 1:
        by_name.clear()
        for name, n_bytes in bytes_by_name.items():
            by_name[name if " " in name else re.split(r"[.\[]", name)[0]] += n_bytes
    names = sorted(by_name, key=lambda name: (-by_name[name], name))
    first = ", ".join("IPython's last traceback" if name == OF_NOTEBOOKS else name for name in names[:2])
    return f"{first} and {len(names) - 2} more" if len(names) > 2 else first


def shared_root(holdings: Sequence[Held]) -> str:
    """Return the root of most of the *holdings*; without its key, if they differ in that alone."""
    roots = Counter(map(root_of, holdings))
    without_key = {re.sub(r"\[(?:[^[]*\](?= of )|[^[]*$)", "", root) or root for root in roots}
    is_shared = len(roots) > 1 and len(without_key) == 1
    return without_key.pop() if is_shared else roots.most_common(1)[0][0]


def every_of(holding: Held) -> str:
    """Return the container that grows, where it is one of several: ``runs[…]`` of ``runs['b'][7]``."""
    words = holding.words[: max(holding.grows_at, 0)]
    return _written(tuple((word[0], "…", *word[2:]) if word[0] in _CONTAINERS else word for word in words))


def path_of(holding: Held) -> str:
    """Return the whole path, as ``history → [3] → grad_fn → AddBackward0 → saved self of MmBackward0``."""
    named = _named_part(holding)
    parts = [_written(named), *map(_word, holding.words[len(named) :])]
    return " → ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the program."""

    file: str
    line: int
    code: str
    """Its text, as far as it is in one line."""


def kept_at(holding: Held) -> Statement | None:
    """Return the statement that keeps it, if the recorder found exactly one."""
    for word in holding.words:
        # A fifth item names the container; recordings of earlier versions lack it and mean the first one.
        if word[0] == "kept_at" and len(word) > 3 and (len(word) == 4 or word[4] in (holding.grows_at, -1)):
            return Statement(str(word[1]), int(word[2]), str(word[3]))
    return None


def is_nameless(holding: Held, cause: str) -> bool:
    """Return whether no name leads to the block, and its cause does not say why."""
    return holding.words[0][0] == "unreachable" and cause in ("unknown", "growing_batch")


@dataclass(frozen=True, slots=True)
class Bound:
    """The most items that a container keeps."""

    n_items: int
    """0 if it is not known."""
    text: str
    """What says so: ``deque(maxlen=50)``, or a comparison in the program."""


def bound_of(holding: Held) -> Bound | None:
    """Return the bound of the container that grows, or of any on the path if none was seen to grow."""
    for at, word in enumerate(holding.words):
        if word[0] == "limit" and len(word) > 4 and word[4] == holding.grows_at >= 0:
            where = line_words(str(word[1]), int(word[2]), holding.words[0])
            return Bound(int(word[5]) if len(word) > 5 else 0, f"{word[3]} in {where}")
        is_asked = at == holding.grows_at or holding.grows_at < 0
        if is_asked and word[0] == "item" and " of " in str(word[-1]):
            kind, _, n_items = str(word[-1]).rpartition(" of ")
            said = {"lru_cache": "lru_cache(maxsize=", "list": "LBFGS(history_size="}
            return Bound(int(n_items), f"{said.get(kind, f'{kind}(maxlen=')}{n_items})")
    return None


@dataclass(frozen=True, slots=True)
class KeptView:
    """Small views that alone keep the storage of a whole tensor."""

    shape: str
    """The shape of the view, as ``[32, 4]``; '' where a storage has several views."""
    n_bytes: int
    """Bytes of the views of one storage."""
    storage_bytes: int
    """Bytes that stay allocated for them."""


def kept_view(holdings: Sequence[Held]) -> KeptView | None:
    """Return the largest of the views that keep most bytes of the *holdings*; None if they do not."""
    views = [(each, word) for each in holdings if (word := each.first("view")) is not None]
    if 2 * sum(each.n_bytes for each, _ in views) <= sum(each.n_bytes for each in holdings):
        return None
    largest, (_, shape, _, n_bytes) = max(views, key=lambda view: view[0].n_bytes)
    return KeptView(str(shape), int(n_bytes), largest.n_bytes)


def line_words(file: str, line: int, shown: Sequence[Any]) -> str:
    """Return ``line 8``, or ``memory.py:8`` if the file is none of those *shown* beside it."""
    return f"line {line}" if file in shown else f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"


def container_of(holding: Held) -> str:
    """Return the type of the container that grows, such as ``list`` or ``dict``; '' if none does."""
    return str(holding.words[holding.grows_at][2]) if holding.grows_at >= 0 else ""


def before_graph(holding: Holding) -> tuple[Word, ...]:
    """Return the words up to the tensor whose graph the path enters; all words if it enters none."""
    kinds = [word[0] for word in holding.words]
    return holding.words[: kinds.index("graph")] if "graph" in kinds else holding.words


def _named_part(holding: Held) -> tuple[Word, ...]:
    """Return the words up to the container that holds many blocks, or up to the variable."""
    if holding.n_named > 0:
        return holding.words[: holding.n_named]
    words = before_graph(holding)
    for at, word in enumerate(words):
        is_name = word[0] == "key" and (
            str(word[1]).startswith(("'", '"')) or str(words[at - 1][1]).endswith("_hooks")
        )
        if at and word[0] not in _NAMES and not is_name:
            return words[:at]
    return words


def _written(words: tuple[Word, ...]) -> str:
    text = of = ""
    for at, (kind, name, *rest) in enumerate(words):
        if kind == "key" and words[at - 1][:2] == ("attribute", "funcargs"):
            text, of = str(name).strip("'"), ""  # pytest: a test refers to a fixture by its name
        elif kind in _CONTAINERS:
            text = f"{text}[{name}]"
        elif kind in _NAMELESS:
            continue
        elif kind in ("closure", "frame", "default"):
            text, of = str(name), f" of {str(rest[0]).replace('.<locals>', '')}" if rest else ""
        elif kind in ("unreachable", "unnamed"):
            text = f"an {kind} {name}" + (" and its .grad" if name == "Parameter" else "")
        elif kind == "grad" and text.endswith(".grad"):
            continue
        elif kind == "attribute" and str(name).isdigit():
            text = f"{text}[{name}]"
        else:
            text = f"{text}.{name}" if text else str(name)
    return text + of


def _word(word: Word) -> str:
    kind, name = str(word[0]), word[1]
    if kind == "nodes" and isinstance(name, list):
        return ", ".join(str(node) if times == 1 else f"{node} ×{times}" for node, times in name)
    return {
        "item": f"[{name}]",
        "key": f"[{name}]",
        "graph": "grad_fn",
        "grad": ".grad",
        "saved": f"saved {name} of {word[-1]}",
        "ctx": f"ctx.{name} of {word[-1]}",
        "traceback": f"traceback of {name}" if name else "",
        "frame": f"local {name} of {word[2]}" if len(word) > 2 else str(name),
        "hook": f"put there by the hook {name}",
        **dict.fromkeys(("part", "kept_at", "reset", "view", "end", "limit"), ""),
    }.get(kind, str(name))
