"""The calls that start, change and stop torch's history: ours, and those of the program.

torch has one history per process. While the program keeps it, vramscope only reads it.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from vramscope.capture.hooks.open_phases import replace
from vramscope.capture.torch_versions import private_functions as private
from vramscope.errors import CaptureError

_NAME = "_record_memory_history"


def clears_when_asked() -> bool:
    """Whether a call can empty the ring of a history that is on (torch ≥ 2.8)."""
    return "clear_history" not in left_out()


def record_call(
    enabled: str | None, max_entries: int, *, context: str = "alloc", clears: bool = True
) -> Callable[[], Any]:
    """A call of torch's function for its history.

    With the context ``"alloc"`` frees have no stacks of their own: torch takes none, and hands an entry of 25
    frames over in 0.86 µs instead of 1.30 (the least of nine measurements).

    ``free_requested`` is not skipped: after ``record_stream``, which C++ calls too, a block that was freed
    waits for its stream. No other entry shows that, and its bytes would stay allocated for too long.
    """
    call = private.found(private.RECORD_HISTORY)
    return _bound_record(call, enabled, max_entries, context, clears)[0]


def left_out() -> frozenset[str]:
    """The options of the history that this torch does not have."""
    return _bound_record(private.found(private.RECORD_HISTORY), "all", 1, "alloc", True)[1]


@lru_cache(maxsize=32)
def _bound_record(
    _: Any, enabled: str | None, max_entries: int, context: str, clears: bool
) -> tuple[Callable[[], Any], frozenset[str]]:
    given: dict[str, Any] = {
        "enabled": enabled,
        "context": context,
        "stacks": "python",
        "max_entries": max_entries,
        "clear_history": clears,
        "compile_context": False,
        "global_record_annotations": True,
        "skip_actions": ["snapshot"],
        "record_pinned_host_memory": enabled is not None,
    }
    binding = private.bound(private.RECORD_HISTORY, given)
    if binding is not None and "stacks" in binding.left_out:
        # torch would walk the C++ stacks of each allocation as well, which takes many times as long.
        binding = private.bound(private.RECORD_HISTORY, given | {"context": None})
    # Without a bound the ring could take all of the host's memory.
    if (
        binding is None
        or binding.left_out & {"enabled", "max_entries"}
        or binding.left_out >= {"stacks", "context"}
    ):
        raise CaptureError(private.difference(private.RECORD_HISTORY))
    _remember(binding.left_out)
    return binding.call, binding.left_out


_COSTS = {"stacks": "call stacks", "global_record_annotations": "the regions of record_function"}


def _remember(missing: frozenset[str]) -> None:
    """Remember a signature that nobody has met, and what is missing for it."""
    taken = private.parameters_of(private.RECORD_HISTORY)
    if taken is None or private.is_met(private.RECORD_HISTORY, taken):
        return
    expected = missing & set(private.expected_of(private.RECORD_HISTORY))
    costs = [_COSTS[name] for name in sorted(expected & set(_COSTS))]
    problem = private.difference(private.RECORD_HISTORY)
    if costs:
        private.lack(private.RECORD_HISTORY, problem, " and ".join(costs))
    else:
        private.remark(private.RECORD_HISTORY, problem)


def hook_program_calls(before: Callable[[], None], after: Callable[[bool], None]) -> None:
    """Stand around the program's ``torch.cuda.memory._record_memory_history`` until ``hooks.uninstall``.

    *before* reads what the call may discard, *after* gets whether a history is kept now; neither may raise.
    """

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def called(enabled: Any = "all", *args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return original(enabled, *args, **kwargs)
            finally:
                after(enabled not in (None, False))

        return called

    if hasattr(torch.cuda.memory, _NAME):
        replace(torch.cuda.memory, _NAME, watched)
