"""Explains in words why a block is in its category."""

from vramscope.analysis.categories.by_lifetime import Lives, Reason, lives_of
from vramscope.analysis.lifetimes import ALIVE, Allocations
from vramscope.analysis.step_and_phase import number_of_step
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording
from vramscope.package_data import words

_KNOWN, _NAMELESS, _BY_COLLECTIVE, _BY_STACK = (
    {Category[name.upper()]: text for name, text in words(__file__, "why.tsv", kind).items()}
    for kind in ("known", "nameless", "collective", "stacks")
)
_BECAUSE = {Reason[name.upper()]: text for name, text in words(__file__, "why.tsv", "because").items()}
_OWN_NAMES = (Category.PARAMETER, Category.BUFFER, Category.SHARDED_PARAMETER, Category.UNSHARDED_PARAMETER)


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
