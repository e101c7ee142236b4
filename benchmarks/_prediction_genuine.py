"""One program's run on torch's genuine allocator, for ``prediction.py``."""

import traceback
from functools import cache
from types import ModuleType
from typing import Any

import torch


def answer(programs: ModuleType, program: str, variant: str) -> dict[str, Any]:
    """Return torch's own peaks in bytes."""
    programs.train(program, variant)
    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def out_of_memory(programs: ModuleType, program: str, variant: str, limit_bytes: int) -> dict[str, Any]:
    """Return where a genuine run fails with so many bytes, by its traceback and torch's own snapshot."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
    torch.cuda.memory._record_memory_history(context="all", stacks="all", max_entries=1000)
    try:
        programs.train(program, variant)
    except torch.OutOfMemoryError as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == programs.__file__
        ]
        return {"operator": _operator(), "line": lines[-1]}
    return {"operator": "", "line": 0}


def _operator() -> str:
    """Return the operator by its C++ frames: the outermost one that autograd hands on to the device."""
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    frames = next(event["frames"] for event in events if event["action"] == "oom")
    called = []
    for frame in frames:  # the innermost first, down to the line of Python that called
        if frame["filename"].endswith(".py"):
            break
        if frame["name"].startswith("at::_ops::"):
            name, _, how = frame["name"][len("at::_ops::") :].split("(")[0].partition("::")
            called.append((_names().get(name, name), how))
    handed_on = [name for name, how in called if how == "redispatch"]
    return handed_on[-1] if handed_on else called[-1][0]


@cache
def _names() -> dict[str, str]:
    """Return each operator's name by that of its C++ class, which has the overload in it."""
    schemas = [each for each in torch._C._jit_get_all_schemas() if each.name.startswith("aten::")]
    return {
        each.name[6:] + (f"_{each.overload_name}" if each.overload_name else ""): f"aten.{each.name[6:]}"
        for each in schemas
    }
