"""Explains in words why a block is in its category."""

from collections.abc import Mapping

from vramscope.analysis.categories.by_lifetime import Lives, Reason, lives_of
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_and_phase import number_of_step
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

_KNOWN: Mapping[Category, str] = {
    Category.PARAMETER: "storage of parameter {name}",
    Category.BUFFER: "storage of buffer {name}",
    Category.GRADIENT: "{name}",
    Category.OPTIMIZER_STATE: "in an optimizer's state: {name}",
    Category.INPUT: "argument of a module's call, {name}",
    Category.ACTIVATION: "{name}",
    Category.SHARDED_PARAMETER: "storage of this rank's shard of parameter {name}",
    Category.UNSHARDED_PARAMETER: "parameter {name}, gathered from the shards of all ranks",
    Category.SHARDED_GRADIENT: "this rank's shard of the {name}",
}
_OWN_NAMES = (Category.PARAMETER, Category.BUFFER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER)
_NAMELESS: Mapping[Category, str] = {
    Category.PARAMETER: "storage of a parameter of an optimizer",
    Category.GRADIENT: "gradient of a parameter",
    Category.INPUT: "argument of a module's call",
    Category.SHARDED_PARAMETER: "storage of this rank's shard of a parameter",
    Category.UNSHARDED_PARAMETER: "a parameter, gathered from the shards of all ranks",
    Category.SHARDED_GRADIENT: "this rank's shard of a gradient",
}
_BECAUSE: Mapping[Reason, str] = {
    Reason.SAVED: "{born} and alive when backward began; {died}",
    Reason.RECOMPUTED: "{born}: a checkpoint ran its forward again; {died}",
    Reason.KEPT_GRAPH: "{born} and freed by a later backward: the graph of a gradient",
    Reason.LEFT_BY_BACKWARD: "{born} and left by it; {died}",
    Reason.LEFT_BY_OPTIMIZER: "{born} and left by it; {died}",
    Reason.LOADED: "{born} before the forward of its step, alive when backward began; {died}",
    Reason.WITHIN: "{born}; {died}",
    Reason.WORKSPACE: "size and life of a cuBLAS workspace; {died}",
    Reason.UNFINISHED: "{born}, for a backward that has not come; {died}",
    Reason.CONSTRUCTED: "asked for by a module's constructor; {died}",
    Reason.COLLECTIVE: "asked for by torch's own code for several devices",
}
_BY_COLLECTIVE: Mapping[Category, str] = {
    Category.SHARDED_PARAMETER: "made by FSDP as this rank's shard",
    Category.UNSHARDED_PARAMETER: "made by FSDP to gather the shards of all ranks in",
    Category.PARAMETER: "made by FSDP of the parameters of a module, before it shards them",
    Category.GRADIENT: "made by FSDP to accumulate a whole gradient in",
}
_BY_STACK: Mapping[Category, str] = {
    Category.ACTIVATION: "by the stacks, made by a forward and freed while backward ran",
    Category.GRADIENT: "by the stacks, made by backward and alive after it",
    Category.OPTIMIZER_STATE: "by the stacks, made by an optimizer and alive in a later forward or backward",
    Category.TEMPORARY: "by the stacks, freed before a backward or a later part of the step used it",
}


def why(recording: Recording, allocation: Allocations, category: Category, reason: Reason, name: str) -> str:
    """Explain the category of the one row of *allocation*; *name* is the name of its label."""
    if reason == Reason.IDENTITY:
        text = _KNOWN.get(category, "known by its storage: {name}")
        if not name:
            text = _NAMELESS.get(category, text.partition(":")[0])
        return text.format(name=f"`{name}`" if category in _OWN_NAMES else name)
    if reason == Reason.STACKS:
        return _BY_STACK[category]
    if reason == Reason.COLLECTIVE and category in _BY_COLLECTIVE:
        return _BY_COLLECTIVE[category]
    lives = lives_of(recording, allocation)
    born, died = _born(recording, lives, allocation), _died(recording, lives, allocation)
    return _BECAUSE.get(reason, "{born}; {died}: nothing says what for").format(born=born, died=died)


def _born(recording: Recording, lives: Lives, allocation: Allocations) -> str:
    event = int(allocation.alloc_event[0])
    if event < 0:
        what = "the detail that was kept" if recording.past.n_events else "the recording began"
        return f"there before {what}"
    step = number_of_step(recording.steps, event)
    where = f"in {Phase(int(lives.phase[0])).name.lower()}" if lives.born_in[0] >= 0 else "between the phases"
    return f"born {where}, outside of every step" if step is None else f"born {where} of step {step}"


def _died(recording: Recording, lives: Lives, allocation: Allocations) -> str:
    event = int(allocation.free_event[0])
    if event == ALIVE:
        return "alive at the end"
    row = int(lives.freed_in[0])
    where = f"in {Phase(int(lives.phases.phase[row])).name.lower()}" if row >= 0 else "between the phases"
    step = number_of_step(recording.steps, event)
    if row >= 0 and lives.born_in[0] == row:
        return "dead within it"
    return f"freed {where}" if step is None else f"freed {where} of step {step}"
