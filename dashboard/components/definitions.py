"""What every quantity means, in one sentence, on hover and on focus."""

from typing import Any

import dash_mantine_components as dmc
from dash import html

DEFINITION = {
    "requested": "What the program asked for, before rounding.",
    "allocated": "Blocks that serve tensors, rounding included: torch.cuda.memory_allocated().",
    "active": "Allocated, plus blocks already freed that another stream may still be using.",
    "reserved": "Every segment the caching allocator holds from the driver: torch.cuda.memory_reserved().",
    "device_used": "What the driver counts on the device (NVML): all processes, contexts and libraries.",
    "capacity": "The device's whole memory, as the driver states it.",
    "unallocated": "Reserved minus allocated: held from the driver, but serving no tensor.",
    "rounding": "Allocated minus requested: lost to rounding sizes up.",
    "pending": "Freed by the program, still waited for by another stream.",
    "inactive_split": "Free pieces inside segments that are still in use: cannot be returned to the driver.",
    "releasable": "Segments wholly free: empty_cache() would return them.",
    "parameter": "Weights of the model.",
    "buffer": "Tensors of the model that are not trained, such as running means.",
    "gradient": "Gradients of parameters.",
    "optimizer_state": "What the optimizer keeps between steps, such as Adam's two moments.",
    "input": "Batches from the data loader.",
    "activation": "Kept by forward because backward needs it.",
    "temporary": "Made and given back within one phase.",
    "workspace": "Scratch memory that a library such as cuBLAS takes once and keeps for good.",
    "communication": "Buckets and buffers of distributed training.",
    "unknown": "Nothing recorded says what these bytes are for.",
    "instant": "The state after so many allocator events; instant 0 is before the first.",
    "step": "One training step: found from the optimizer, or marked by recorder.step().",
    "phase": "What the program was doing: forward, backward, optimizer, …",
    "blocks": "Allocations alive at this instant.",
    "simulated": "No GPU took part: tensors on the CPU went through a model of the caching allocator.",
    "cuda": "Recorded from the CUDA caching allocator of torch.",
    "file": "A file that torch or a profiler wrote, opened read-only.",
    "pre-existing": "Allocated before the recording began; where it came from is not known.",
}
LABEL = {
    "allocated": "Allocated",
    "active": "Active",
    "reserved": "Reserved",
    "device_used": "Device used",
    "capacity": "Capacity",
}


def term(name: str, text: Any = None) -> Any:
    """*text*, with the definition of *name* for pointer and keyboard."""
    label = html.Span(text if text is not None else LABEL.get(name, name), className="term", tabIndex="0")
    return explained(label, DEFINITION[name])


def explained(child: Any, sentence: str) -> Any:
    """*child* with a sentence that appears on hover and focus."""
    return dmc.Tooltip(
        child,
        label=sentence,
        multiline=True,
        w=280,
        openDelay=250,
        withArrow=True,
        events={"hover": True, "focus": True, "touch": True},
    )
