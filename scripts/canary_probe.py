"""What the torch of this Python says about itself, as JSON into a file: ``python canary_probe.py FILE``.

It runs over the stand-in of a version, which ``canary.py`` builds.
"""

import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from vramscope.capture.torch_versions.private_functions import (
    PRIVATE_FUNCTIONS,
    PrivateFunction,
    parameters_of,
)

WANTED = {"record_pinned_host_memory": True}
"""Options of the history that are off by default, where torch has them."""


def main() -> None:
    """Record a little of everything, and write the answer."""
    warnings.simplefilter("ignore")
    snapshot = recorded()
    settings = snapshot.pop("allocator_settings", {})
    traces = [*snapshot.get("device_traces", []), *snapshot.get("host_traces", [])]
    events = [event for trace in traces for event in (trace if isinstance(trace, list) else [trace])]
    answer = {
        "private": {function.name: taken(function) for function in PRIVATE_FUNCTIONS},
        "functions": dict(signatures()),
        "fields": dict.fromkeys(sorted(set(fields(snapshot))), ""),
        "actions": dict.fromkeys(sorted({str(event["action"]) for event in events}), ""),
        "counters": dict.fromkeys(sorted(torch.cuda.memory_stats()), ""),
        "settings": {name: type(value).__name__ for name, value in sorted(settings.items())},
    }
    Path(sys.argv[1]).write_text(json.dumps(answer))


def recorded() -> dict[str, Any]:
    """Return a snapshot of a program with every kind of event that a line or two can cause."""
    memory = torch.cuda.memory
    has = inspect.signature(memory._record_memory_history).parameters
    options = {name: value for name, value in WANTED.items() if name in has}
    memory._record_memory_history("all", stacks="python", **options)
    kept = [torch.empty(1 << 20, device="cuda") for _ in range(3)]
    pinned = torch.empty(1 << 20).pin_memory()
    kept.pop().record_stream(torch.cuda.Stream())
    kept.pop()
    for name in ("_annotate_tensor", "_set_memory_metadata"):
        with suppress(Exception):  # what they take is what the page tells
            getattr(memory, name)(*([kept[0], "a note"] if "annotate" in name else ["a note"]))
    if hasattr(torch.cuda, "MemPool"):
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            kept.append(torch.empty(1 << 20, device="cuda"))
    with suppress(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda")
    torch.cuda.empty_cache()
    snapshot: dict[str, Any] = memory._snapshot()
    del pinned
    return snapshot


def taken(function: PrivateFunction) -> str:
    """Return what a private function takes, in words."""
    if not hasattr(torch._C, function.name):
        return "is missing"
    names = parameters_of(function)
    return "does not say what it takes" if names is None else f"({', '.join(names)})"


def signatures() -> Iterator[tuple[str, str]]:
    """Yield the functions of ``torch.cuda.memory``, and what each takes."""
    for name, thing in inspect.getmembers(torch.cuda.memory, inspect.isfunction):
        if thing.__module__ == torch.cuda.memory.__name__:
            yield name, str(inspect.signature(thing))


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path and type of every value in nested dictionaries and lists."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from fields(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(inner, dict | list) for inner in value):
        for inner in value:
            yield from fields(inner, f"{path}[]")
    else:
        yield f"{path}: {type(value).__name__}"


if __name__ == "__main__":
    main()
