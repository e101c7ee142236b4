"""Definitions of the quantities and terms, shown on hover and on focus."""

from typing import Any

from dash import html

DEFINITION = {
    "requested": "Bytes that the program requested, before rounding.",
    "allocated": "Blocks that serve tensors, rounding included: torch.cuda.memory_allocated().",
    "active": "Allocated, plus freed blocks that another stream may still be using.",
    "reserved": "Every segment that the caching allocator holds: torch.cuda.memory_reserved().",
    "device_used": "Used memory of the device as NVML reports it: all processes, contexts and libraries.",
    "capacity": "Total memory of the device, as the driver reports it.",
    "unallocated": "Reserved minus allocated: held by the caching allocator, but used by no tensor.",
    "rounding": "Allocated minus requested: the cost of rounding sizes up.",
    "pending": "Freed by the program, but another stream may still be using it.",
    "inactive_split": "Free blocks inside segments that are partly in use: empty_cache() cannot return them.",
    "releasable": "Segments that are wholly free: empty_cache() returns them.",
    "private_pools": "Free in pools of CUDA graphs and MemPools: kept for these while they live.",
    "parameter": "Weights of the model.",
    "buffer": "Tensors of the model that are not trained, such as running means.",
    "gradient": "Gradients of parameters.",
    "optimizer_state": "What the optimizer keeps between steps, such as Adam's two moments.",
    "input": "Batches from the data loader.",
    "activation": "Saved by forward because backward needs it.",
    "temporary": "Allocated and freed within one phase.",
    "workspace": "Scratch memory that a library such as cuBLAS allocates once and keeps.",
    "communication": "Buckets and buffers of distributed training.",
    "sharded_parameter": "This rank's shard of a parameter, as FSDP or tensor parallelism divides it.",
    "unsharded_parameter": "A whole parameter that FSDP gathers from all ranks while a module computes.",
    "sharded_gradient": "This rank's shard of a gradient: under FSDP the reduced one.",
    "unknown": "The recording does not show what these bytes are for.",
    "instant": "The state after this number of allocator events; instant 0 is before the first.",
    "step": "One training step: detected from the optimizer, or marked by recorder.step().",
    "phase": "What the program was doing: forward, backward, optimizer, …",
    "blocks": "Allocations alive at this instant.",
    "simulated": "Recorded without a GPU: a model of the caching allocator served tensors on the CPU.",
    "predicted": "Run dry without a GPU: shapes alone, with the memory that torch takes for them on CUDA.",
    "cuda": "Recorded from the CUDA caching allocator of torch.",
    "file": "A file that torch or a profiler wrote, opened read-only.",
    "log": "Figures that a program printed, at the moments at which it did.",
    "telemetry": "What a tool read from the driver, for whole devices or processes.",
    "nvidia-smi": "What nvidia-smi read from the driver, for whole devices or processes.",
    "pre-existing": "Allocated before the recording began; its origin is unknown.",
}
LABEL = {
    "allocated": "Allocated",
    "active": "Active",
    "reserved": "Reserved",
    "device_used": "Device used",
    "capacity": "Capacity",
}


def term(name: str, text: Any = None) -> Any:
    """Return *text* with the definition of *name* for pointer and keyboard."""
    label = html.Span(text if text is not None else LABEL.get(name, name), className="term", tabIndex="0")
    return explained(label, DEFINITION[name])


def explained(child: Any, sentence: str) -> Any:
    """Return *child* with a sentence that appears on hover and focus."""
    # An attribute of its own element: an element around it would be another item of its row.
    setattr(child, "data-means", sentence)
    return child
