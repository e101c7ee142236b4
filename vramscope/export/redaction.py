"""Takes paths, names, commands and hosts out of a run and leaves every figure.

What is torch's or Python's own keeps its name, since the meaning of a block follows from it: frames of torch,
states of optimizers, containers. Everything else becomes ``file3.py``, ``function7``, ``name12``, the same
word for the same thing in the whole run.
"""

import builtins
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from vramscope.analysis.folding import PLUMBING, Origin, origins
from vramscope.model.holders import Holders
from vramscope.model.marks import ROOT_MODULE, Labels, Marks, Note, Phases
from vramscope.model.past import Past
from vramscope.model.recording import Recording, Run
from vramscope.model.stacks import Stacks

Named = TypeVar("Named", Marks, Phases, Labels)

_COMMON_FUNCTIONS = frozenset(
    {"<module>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
    | {"__init__", "__call__", "__enter__", "__exit__", "forward", "backward", "step"}
    # They do not name what a line calls, and another word would.
    | PLUMBING
)
_COMMON_NAMES = frozenset(
    {"", ROOT_MODULE, "weight", "bias", "grad", "gradient", "state", "step", "exp_avg", "exp_avg_sq", "self"}
    | {"max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum", "lru_cache"}
    | {
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "deque",
        "defaultdict",
    }
    | {
        "Tensor",
        "Parameter",
        "Optimizer",
        "function",
        "method",
        "cell",
        "frame",
        "traceback",
        "AccumulateGrad",
    }
    | {"forward", "backward", "optimizer", "recompute", "eval", "zero_grad", "data", "loss", "save"}
    | {name for name in dir(builtins) if not name.startswith("_")}
)
_NODE_OF_TORCH = re.compile(r"\w+Backward\d+")
_NO_NAME = re.compile(r"[\d\[\]()−-]*")
_IN_PYTHON = re.compile(r"(?:.*/)?lib/python3[^/]*/")
_PLACES = re.compile(r"(?:.*/)?(?:site-packages|dist-packages)/")
_ROOT_OF_TORCH = re.compile(r"(?:.*/)?((?:torch|torchgen|functorch|triton)/.*)")
_COMPILED = re.compile(r"(?:^|/)torchinductor_")
# Code without a file: its author follows from how the name begins, the rest may be a name of the program.
_GENERATED = re.compile(r"<(?:frozen |eval_with_key>|__array_function__|decorator-gen|attrs |@)?")
_FROZEN = re.compile(r"<frozen (\w+)[\w.]*>")
_NAMESPACE = re.compile(r"(?<![\w:])(\w+)::")
_NAMESPACES = frozenset(
    {"at", "c10", "c10d", "torch", "caffe2", "std", "pybind11", "thrust", "cub", "__gnu_cxx"}
)
_IN_ANGLES = re.compile(r"<[^<>]*>")
_NATIVE = re.compile(r"_*(?:Py|py|THP|cu(?:da|dnn|blas)?[A-Z]|nccl|libc_|clone|start_thread)")
_SUFFIX = re.compile(r"\.\w{1,4}$")


def redacted(run: Run) -> Run:
    """Return *run* without paths, names of the program, commands, hosts and texts of errors and notes.

    Parameters
    ----------
    run
        The run; it is not changed.

    Returns
    -------
    Run
        The same events, steps, phases, samples and states: every figure of a report stays.
    """
    words = _Replacements()
    return replace(
        run,
        name="run",
        path="run",
        recordings=tuple(_recording(each, words) for each in run.recordings),
        error=words.once("error", run.error) if run.error else "",
        notes=_notes(run.notes),
    )


class _Replacements:
    """The word for each text, the same in the whole run."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def once(self, kind: str, text: str, suffix: str = "") -> str:
        """The word for *text*: its kind, a number, and a suffix."""
        if (kind, text) not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[kind, text] = f"{kind}{self._counts[kind]}{suffix}"
        return self._known[kind, text]

    def file(self, path: str, origin: int) -> str:
        """The path without its folders, as far as they are not torch's or Python's."""
        if not path or path.startswith("<") or path == "??":
            return self._generated(path)
        inside = path.replace("\\", "/")
        suffix = found[0] if (found := _SUFFIX.search(inside)) else ""
        if origin == Origin.TORCH:
            return f"/site-packages/{self._of_torch(path, suffix)}"
        if origin == Origin.PACKAGE:
            # Files of the same name read the same where a line calls them.
            folder, _, name = _PLACES.sub("", inside).rpartition("/")
            package = self.once("package", folder.split("/")[0])
            words = package, self.once("folder", folder), self.once("file", name, suffix)
            return f"/site-packages/{'/'.join(words)}"
        if origin == Origin.RUNTIME and _IN_PYTHON.match(inside):
            return f"/lib/python3/{_IN_PYTHON.sub('', inside)}"
        if origin == Origin.RUNTIME:
            return self.once("/lib/python3/runtime", path, suffix)
        return self.once("file", path, suffix)

    def _generated(self, path: str) -> str:
        if path in ("", "??", "<string>") or _is_frozen_python(path):
            return path
        begin = found[0] if (found := _GENERATED.match(path)) else ""
        return self.once(f"{begin}code", path, ">")

    def _of_torch(self, path: str, suffix: str) -> str:
        inside = path.replace("\\", "/")
        if _PLACES.match(inside):
            return _PLACES.sub("", inside)
        # A checkout of torch lies elsewhere, and what torch compiles in a folder with the user's name.
        known = None if _COMPILED.search(inside) else _ROOT_OF_TORCH.match(inside)
        return known[1] if known else self.once("torch/compiled", path, suffix)

    def function(self, name: str, origin: int, file: str) -> str:
        """The name of a function of *file*, where it is torch's, Python's or every program's."""
        is_python = file.endswith(".py") or _is_frozen_python(file)
        is_known = origin == Origin.TORCH or (
            origin == Origin.RUNTIME and (is_python or _is_public_native(name))
        )
        return name if is_known or name in _COMMON_FUNCTIONS else self.once("function", name)

    def name(self, text: str) -> str:
        """The name of a tensor, module, phase or variable: each part between dots is a word of its own."""
        return " of ".join(".".join(map(self._part, each.split("."))) for each in text.split(" of "))

    def _part(self, part: str) -> str:
        is_known = part in _COMMON_NAMES or _NO_NAME.fullmatch(part) or _NODE_OF_TORCH.fullmatch(part)
        return part if is_known else self.once("name", part)


def _is_frozen_python(file: str) -> bool:
    """Whether a file without a path is one of Python's own modules."""
    found = _FROZEN.fullmatch(file)
    return found is not None and found[1] in sys.stdlib_module_names


def _is_public_native(name: str) -> bool:
    """Whether a function in C or C++ is one of torch, Python, CUDA or a standard library."""
    if not set(_NAMESPACE.findall(name)) <= _NAMESPACES:
        return False
    called = name
    while called != (called := _IN_ANGLES.sub("", called)):
        pass
    # What comes before it is the type that it returns.
    called = called.partition("(")[0].rpartition(" ")[2]
    return "::" in called or _NATIVE.match(called) is not None


def _recording(recording: Recording, words: _Replacements) -> Recording:
    process, device = recording.process, recording.device
    return replace(
        recording,
        process=replace(
            process,
            host=words.once("host", process.host) if process.host else "",
            command="",
            pid=0,
            job=words.once("job", process.job) if process.job else "",
            tags="",
        ),
        device=replace(device, uuid=""),
        prediction=None,
        stacks=_stacks(recording.stacks, words),
        marks=_named(recording.marks, words),
        phases=_named(recording.phases, words),
        labels=_named(recording.labels, words),
        holders=_holders(recording.holders, words),
        past=_past(recording.past, words),
        notes=_notes(recording.notes),
    )


def _past(past: Past, words: _Replacements) -> Past:
    return replace(past, marks=_named(past.marks, words), phases=_named(past.phases, words))


def _named(table: Named, words: _Replacements) -> Named:
    return replace(table, names=tuple(map(words.name, table.names)))


def _notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple(replace(note, text=f"{note.code}: the text is redacted") for note in notes)


def _stacks(stacks: Stacks, words: _Replacements) -> Stacks:
    """The same tree; a text that is a file here and a function there becomes two."""
    who = origins(stacks)
    strings: dict[str, int] = {"": 0}
    pairs, of_row = np.unique(np.stack([stacks.file, stacks.function]), axis=1, return_inverse=True)
    files, functions = [], []
    for file, function in pairs.T.tolist():
        origin = int(who[file])
        files.append(_index(strings, words.file(stacks.strings[file], origin)))
        functions.append(
            _index(strings, words.function(stacks.strings[function], origin, stacks.strings[file]))
        )
    of_row = of_row.ravel()
    return replace(
        stacks,
        file=np.array(files, "i4")[of_row],
        function=np.array(functions, "i4")[of_row],
        strings=tuple(strings),
    )


def _holders(holders: Holders, words: _Replacements) -> Holders:
    """The same paths; a kind keeps its word, a statement loses its text."""
    strings: dict[str, int] = {"": 0}

    def column(name: str, word: Callable[[str], str]) -> Any:
        used, of_row = np.unique(getattr(holders, name), return_inverse=True)
        new = [_index(strings, word(holders.names[text])) for text in used.tolist()]
        return np.array(new, "i4")[of_row]

    columns = {
        "kind": column("kind", str),
        "name": column("name", words.name),
        "owner": column("owner", words.name),
        "file": column("file", lambda path: words.file(path, Origin.USER)),
    }
    return replace(holders, **columns, names=tuple(strings))


def _index(strings: dict[str, int], text: str) -> int:
    return strings.setdefault(text, len(strings))
