"""Takes paths, names, commands and hosts out of a run and leaves every figure.

What is torch's or Python's own keeps its name, since the meaning of a block follows from it: frames of torch,
states of optimizers, containers. Everything else becomes ``file3.py``, ``function7``, ``name12``, the same
word for the same thing in the whole run.
"""

import builtins
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from hashlib import blake2s
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vramscope.analysis.folding import PLUMBING, Origin, origins
from vramscope.model.cards import CARDS
from vramscope.model.codes import NoteCode
from vramscope.model.device import Device, Process
from vramscope.model.holders import KINDS, Holders
from vramscope.model.marks import ROOT_MODULE, Labels, Marks, Note, Phases
from vramscope.model.recording import Recording, Run
from vramscope.model.stacks import Stacks
from vramscope.package_data import rows

Named = TypeVar("Named", Marks, Phases, Labels)

_COMMON_FUNCTIONS = frozenset(
    {"<module>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
    | {"__init__", "__call__", "__enter__", "__exit__", "forward", "backward", "step"}
    # They do not name what a line calls, and another word would.
    | PLUMBING
)
_COMMON_NAMES = (
    {"", ROOT_MODULE}
    | {name for (name,) in rows(__file__, "redaction.tsv", "name")}
    | {name for name in dir(builtins) if not name.startswith("_")}
)
_POSITION = re.compile(r"[\[\]()−-]*\d{0,2}[\[\]()−-]*")
"""The index of a layer or of an item. More digits may be the number of a customer."""
_IN_PYTHON = re.compile(r"(?:.*/)?lib/python3[^/]*/")
_PLACES = re.compile(r"(?:.*/)?(?:site-packages|dist-packages)/")
_ROOT_OF_TORCH = re.compile(r"(?:.*/)?((?:torch|torchgen|functorch|triton)/.*)")
# Code without a file: its author follows from how the name begins, the rest may be a name of the program.
_GENERATED = re.compile(r"<(?:frozen |eval_with_key>|__array_function__|decorator-gen|attrs |@)?")
_FROZEN = re.compile(r"<frozen ([\w.]+)>")
_WORD = re.compile(r"[^\W\d]\w*")
_LONG_NUMBER = re.compile(r"\d{6}")
_WORKSPACE = re.compile(r"getNewWorkspace|WorkspaceSize|Workspace\(\)")
_SUFFIX = re.compile(r"\.(?:pyx?|pyi|pyc|so|cpp|cxx|cc|cuh?|h|hpp|hip|inl|rs|c)$")
_VERSION = re.compile(
    r"(?:\d{1,4}\.?){1,4}(?:(?:a|b|rc|\.dev|\.post)\d{1,8})?(?:\+(?:cpu|cu\d{2,3}|rocm[\d.]{1,5}))?"
)
_SETTING_WORDS = {word for (word,) in rows(__file__, "redaction.tsv", "setting")}
_KINDS_OF_DEVICES = frozenset({"cuda", "simulated", "cpu", "xpu", "hip", "mps", "predicted"})
_SOURCES = frozenset({"cuda", "simulated", "snapshot", "predicted", "counters", "nvidia-smi"})
_CARD_WORDS = frozenset(
    word for card in CARDS for word in (*card.label.split(), *card.label.replace("-", " ").split())
) | {"NVIDIA", "Tesla", "GeForce", "Quadro", "HBM2", "HBM2e", "HBM3", "HBM3e", "PCIe", "SXM", "SXM4", "SXM5"}
FILE = Path(__file__).with_name("_public_names.bin")
_DIGEST_BYTES = 5


def redacted(run: Run) -> Run:
    """Return *run* without paths, names of the program, commands, hosts and texts of errors and notes.

    Events, steps, phases, samples and states are the same: every figure of a report stays.
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
        name = _public_name(path, origin)
        if is_public(name):
            return f"/site-packages/{name}" if origin == Origin.TORCH else f"/lib/python3/{name[4:]}"
        if origin == Origin.TORCH:
            folders = name.split("/")[:-1] or ["torch"]
            while len(folders) > 1 and not is_public("/".join(folders)):
                folders.pop()
            return f"/site-packages/{'/'.join(folders)}/{self.once('file', path, suffix)}"
        if origin == Origin.PACKAGE:
            # Files of the same name read the same where a line calls them.
            folder, _, name = _PLACES.sub("", inside).rpartition("/")
            package = self.once("package", folder.split("/")[0])
            words = package, self.once("folder", folder), self.once("file", name, suffix)
            return f"/site-packages/{'/'.join(words)}"
        if origin == Origin.RUNTIME:
            return self.once("/lib/python3/runtime", path, suffix)
        return self.once("file", path, suffix)

    def _generated(self, path: str) -> str:
        if path in ("", "??", "<string>") or is_public(_public_name(path, Origin.RUNTIME)):
            return path
        begin = found[0] if (found := _GENERATED.match(path)) else ""
        return self.once(f"{begin}code", path, ">")

    def function(self, name: str, origin: int, file: str) -> str:
        """The name of a function of *file*, where it is torch's, Python's or every program's."""
        if name in _COMMON_FUNCTIONS or _is_public_function(name, origin, file):
            return name
        if origin == Origin.RUNTIME and _WORKSPACE.search(name):  # the category of a block rests on it
            return f"{self.once('function', name)}::getNewWorkspace"
        return self.once("function", name)

    def name(self, text: str) -> str:
        """The name of a tensor, module, phase or variable: each part between dots is a word of its own."""
        return " of ".join(".".join(map(self._part, each.split("."))) for each in text.split(" of "))

    def _part(self, part: str) -> str:
        is_node = "Backward" in part and is_public(f"word:{part}")
        return (
            part if part in _COMMON_NAMES or is_node or _POSITION.fullmatch(part) else self.once("name", part)
        )

    def process(self, process: Process) -> Process:
        """The process with its figures, the versions of what everybody has, and no other text."""
        return replace(
            process,
            python=_version(process.python),
            torch=_version(process.torch),
            driver=_version(process.driver),
            pid=0,
            command="",
            launcher="",
            tags="",
            host=self.once("host", process.host) if process.host else "",
            job=self.once("job", process.job) if process.job else "",
            mesh={self.once("dimension", name): size for name, size in process.mesh.items()},
            # Settings of the allocator that have no word but torch's own.
            allocator={
                name: text
                for name, text in process.allocator.items()
                if _SETTING_WORDS.issuperset(_WORD.findall(f"{name} {text}"))
            },
        )

    def device(self, device: Device) -> Device:
        """The device with its size, and its name where it is that of a card on the market."""
        words = device.name.replace("-", " ").split()
        is_known = device.name == "simulated on x86_64" or set(words) <= _CARD_WORDS
        kind = device.kind if device.kind in _KINDS_OF_DEVICES else "cuda"
        return Device(
            device.index,
            kind,
            device.name if is_known else self.once("device", device.name),
            device.total_bytes,
        )


def _version(text: str) -> str:
    return text if _VERSION.fullmatch(text) else ""


def _public_name(path: str, origin: int) -> str:
    """The name by which the list of public files has the file at *path*, if it is torch's or Python's."""
    inside = path.replace("\\", "/")
    if origin == Origin.TORCH:
        found = _ROOT_OF_TORCH.match(inside)
        return found[1] if found else ""
    if frozen := _FROZEN.fullmatch(inside):
        return f"lib/{frozen[1].replace('.', '/')}.py"
    return f"lib/{_IN_PYTHON.sub('', inside)}" if _IN_PYTHON.match(inside) else ""


def _is_public_function(name: str, origin: int, file: str) -> bool:
    """Whether torch or Python has a function in that file, or our rules know its name."""
    if origin not in (Origin.TORCH, Origin.RUNTIME):
        return False
    if is_public(f"{_public_name(file, origin)}:{name}") or is_public(f"function:{name}"):
        return True
    return (
        origin == Origin.RUNTIME and not file.endswith(".py") and file[:1] != "<" and _is_public_native(name)
    )


def _is_public_native(name: str) -> bool:
    """Whether each word of a function in C or C++ is one of torch, Python, CUDA or a standard library."""
    words = _WORD.findall(name)
    return bool(words) and not _LONG_NUMBER.search(name) and all(is_public(f"word:{word}") for word in words)


def _recording(recording: Recording, words: _Replacements) -> Recording:
    past = recording.past
    return replace(
        recording,
        source=recording.source if recording.source in _SOURCES else "snapshot",
        process=words.process(recording.process),
        device=words.device(recording.device),
        prediction=None,
        sources={},
        stacks=_stacks(recording.stacks, words),
        marks=_named(recording.marks, words),
        phases=_named(recording.phases, words),
        labels=_named(recording.labels, words),
        holders=_holders(recording.holders, words),
        pinned=recording.pinned and _recording(recording.pinned, words),
        past=replace(past, marks=_named(past.marks, words), phases=_named(past.phases, words)),
        notes=_notes(recording.notes),
    )


def _named(table: Named, words: _Replacements) -> Named:
    return replace(table, names=tuple(map(words.name, table.names)))


def _notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    known = {str(code.value) for code in NoteCode}
    codes = ((str(note.code) if str(note.code) in known else "note", note.value) for note in notes)
    return tuple(Note(code, f"{code}: the text is redacted", value) for code, value in codes)


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
        "kind": column("kind", lambda kind: kind if kind in KINDS else words.once("kind", kind)),
        "name": column("name", words.name),
        "owner": column("owner", words.name),
        "file": column("file", lambda path: words.file(path, Origin.USER)),
    }
    return replace(holders, **columns, names=tuple(strings))


def _index(strings: dict[str, int], text: str) -> int:
    return strings.setdefault(text, len(strings))


def digest(name: str) -> bytes:
    """Return what stands for a name in the file."""
    return blake2s(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def is_public(name: str) -> bool:
    """Return whether a file, a ``file:function``, a ``word:`` of C++ or of a node is torch's or Python's."""
    return digest(name) in _digests()


@cache
def _digests() -> frozenset[bytes]:
    data = FILE.read_bytes()
    return frozenset(data[at : at + _DIGEST_BYTES] for at in range(0, len(data), _DIGEST_BYTES))
