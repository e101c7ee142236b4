"""torch's private functions that recording needs: which, where they were checked, and how each is called.

A private function may change with any version of torch, and did: ``_cuda_record_memory_history`` takes 4, 7,
8 or 10 arguments. So nothing is passed by position from here: a function that names its parameters gets them
by name, and the others get what torch's own Python function passes, which belongs to the same version.

A function that is missing, fails or answers something else costs what it ``serves`` and no more. The recorder
notes it (``lacks``) and the training goes on.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any, NamedTuple

import torch

from vramscope.capture.torch_versions import version
from vramscope.capture.undisturbed import is_of_a_signal_handler
from vramscope.errors import CaptureError

CHECKED = ("2.6.0", "2.9.0", "2.11.0", "2.13.0", "2.14.1", "2.15.0")
"""The versions of torch with which the tests record on the genuine allocator."""


@dataclass(frozen=True, slots=True)
class PrivateFunction:
    """One private function of torch."""

    name: str
    """Its name in ``torch._C``."""
    serves: str
    """What a recording lacks without it."""
    caller: str = ""
    """The function of ``torch.cuda.memory`` that calls it; empty where it is called as it stands here."""
    forms: tuple[tuple[str, tuple[str, ...]], ...] = (("2.1", ()),)
    """Its parameters by name in each form that was met, with the version from which on it has these."""
    answer: type | tuple[type, ...] = object
    """The type of what it returns."""
    since: str = "2.1"
    """The first version of torch that has it."""


_HISTORY = ("enabled", "context", "stacks", "max_entries")
_CLEARED = (*_HISTORY, "clear_history", "compile_context", "global_record_annotations")
_SKIPPED = (*_CLEARED, "skip_actions")

RECORD_HISTORY = PrivateFunction(
    "_cuda_record_memory_history",
    "events and call stacks",
    "_record_memory_history_impl",
    (
        ("2.1", _HISTORY),
        ("2.9", _CLEARED),
        ("2.11", _SKIPPED),
        ("2.14", (*_SKIPPED, "record_pinned_host_memory", "record_cuda")),
    ),
)
SNAPSHOT = PrivateFunction(
    "_cuda_memorySnapshot",
    "events and call stacks",
    "_snapshot",
    (("2.1", ()), ("2.9", ("mempool_id",))),
    dict,
)
STATISTICS = PrivateFunction(
    "_cuda_memoryStats", "torch's counters", "memory_stats_as_nested_dict", (("2.1", ("device",)),), dict
)
ACCELERATOR_STATISTICS = PrivateFunction(
    "_accelerator_getDeviceStats",
    "exact peaks of steps with mode='counters'",
    forms=(("2.9", ("device_index",)),),
    answer=dict,
    since="2.9",
)
RESET_PEAKS = PrivateFunction(
    "_cuda_resetPeakMemoryStats",
    "exact peaks of steps with mode='counters'",
    "reset_peak_memory_stats",
    (("2.1", ("device",)),),
)
ACCELERATOR_RESET_PEAKS = PrivateFunction(
    "_accelerator_resetPeakStats",
    "exact peaks of steps with mode='counters'",
    forms=(("2.9", ("device_index",)),),
    since="2.9",
)
IS_HISTORY_ON = PrivateFunction(
    "_cuda_isHistoryEnabled", "whether the program switches the history off itself", answer=bool, since="2.6"
)
HOST_STATISTICS = PrivateFunction(
    "_cuda_hostMemoryStats", "torch's counters of pinned host memory", answer=dict, since="2.7"
)
MEMORY_FRACTION = PrivateFunction(
    "_cuda_getMemoryFraction",
    "the limit that set_per_process_memory_fraction gives",
    forms=(("2.1", ("device",)),),
    answer=float,
    since="2.6",
)
EMPTY_CACHE = PrivateFunction("_cuda_emptyCache", "who calls empty_cache()")
ACCELERATOR_EMPTY_CACHE = PrivateFunction(
    "_accelerator_emptyCache", "who calls torch.accelerator.empty_cache()", since="2.9"
)
OOM_OBSERVER = PrivateFunction(
    "_cuda_attach_out_of_memory_observer",
    "the state on disk at the moment when an allocation fails",
    forms=(("2.1", ("observer",)),),
)
SET_METADATA = PrivateFunction(
    "_cuda_setMemoryMetadata",
    "which of several threads made an event",
    forms=(("2.11", ("metadata",)),),
    since="2.11",
)
GET_METADATA = PrivateFunction(
    "_cuda_getMemoryMetadata", "which of several threads made an event", answer=str, since="2.11"
)
IS_IN_BAD_FORK = PrivateFunction("_cuda_isInBadFork", "the end of the history after a failure", answer=bool)

PRIVATE_FUNCTIONS = tuple(each for each in list(globals().values()) if isinstance(each, PrivateFunction))
"""Every private function of torch that recording on CUDA calls or wraps."""


class Lack(NamedTuple):
    """A private function that is not as it was met."""

    text: str
    is_felt: bool
    """Whether anything is missing."""


_lacks: dict[str, Lack] = {}
"""What was found in this process, by the name of the function."""


def lacks() -> Sequence[Lack]:
    """The private functions that are not as they were met, and what each costs."""
    return tuple(_lacks.values())


def lack(function: PrivateFunction, problem: str, cost: str = "") -> None:
    """Remember that *function* is not as it was met, and costs what it serves; the first problem counts."""
    text = f"torch {torch.__version__}: {function.name} {problem}. Missing: {cost or function.serves}"
    _lacks.setdefault(function.name, Lack(text, is_felt=True))


def remark(function: PrivateFunction, difference: str) -> None:
    """Remember that *function* is not as it was met, and that nothing is missing."""
    text = f"torch {torch.__version__}: {function.name} {difference}. Nothing that is known is missing"
    _lacks.setdefault(function.name, Lack(text, is_felt=False))


def is_lacking(function: PrivateFunction) -> bool:
    """Whether *function* was found wrong before."""
    return function.name in _lacks and _lacks[function.name].is_felt


def ask(function: PrivateFunction, /, *arguments: Any, **given: Any) -> Any:
    """What *function* answers; None where it cannot be asked, which is remembered.

    Arguments that are *given* by name go where this torch takes them, see ``call_of``.
    """
    try:
        call = call_of(function, **given) if given else found(function)
        answer = None if call is None else call(*arguments)
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        lack(function, problem_of(error))
        return None
    if answer is not None and not isinstance(answer, function.answer):
        lack(function, f"returned {type(answer).__name__}")
        return None
    return answer


def problem_of(error: Exception) -> str:
    """The words for an *error* of a private function, which follow its name."""
    text = str(error) if isinstance(error, CaptureError) else f"failed ({type(error).__name__}: {error})"
    return " ".join(text.split())[:200]


def found(function: PrivateFunction) -> Callable[..., Any] | None:
    """The function of the installed torch; None where it is missing, which is remembered."""
    call: Callable[..., Any] | None = getattr(torch._C, function.name, None)
    if call is None and version(function.since) <= version(torch.__version__):
        lack(function, "is missing")
    return call


@dataclass(frozen=True, slots=True)
class Binding:
    """A private function with its arguments."""

    call: "partial[Any]"
    left_out: frozenset[str]
    """The arguments that it does not take."""


def bound(function: PrivateFunction, given: Mapping[str, Any]) -> Binding | None:
    """Bind what *function* takes of the *given* arguments, by name; None where no way fits its signature."""
    call = found(function)
    if call is None:
        return None
    own = _own_parameters(call)
    return _by_own_names(call, own, given) or _as_torch_calls(function, call, own, given)


def is_met(function: PrivateFunction, taken: tuple[str, ...]) -> bool:
    """Whether a version as young as this one was met with the parameters *taken*."""
    younger = [names for since, names in function.forms if version(since) > version(torch.__version__)]
    return taken in (expected_of(function), *younger)


def expected_of(function: PrivateFunction) -> tuple[str, ...]:
    """The parameters that *function* should have in this version, or that it had in the last one met."""
    return next(
        (names for since, names in reversed(function.forms) if version(since) <= version(torch.__version__)),
        (),
    )


@cache
def call_of(function: PrivateFunction, /, **given: Any) -> "partial[Any]":
    """A call of *function* with the *given* arguments that it takes. Raises CaptureError if none fits."""
    binding = bound(function, given)
    if binding is None:
        raise CaptureError(difference(function))
    return binding.call


def difference(function: PrivateFunction) -> str:
    """The words for a function that is not as it was met, which follow its name."""
    if found(function) is None:
        return "is missing"
    taken = parameters_of(function)
    return f"takes other arguments than any that was met ({'unknown' if taken is None else ', '.join(taken)})"


def parameters_of(function: PrivateFunction) -> tuple[str, ...] | None:
    """The parameters of the installed function by name, in their order; None where nothing states them."""
    call = getattr(torch._C, function.name, None)
    own = None if call is None else _own_parameters(call)
    if own is not None and _are_named(own):
        return tuple(own)
    caller = _caller(function)
    if caller is None:
        return None
    marks = {name: _Placeholder(name) for name in inspect.signature(caller).parameters}
    heard = _heard(function, caller, marks)
    if heard is None or not all(isinstance(mark, _Placeholder) for mark in heard[0]):
        return None
    return (*(mark.name for mark in heard[0]), *heard[1])


@dataclass(frozen=True, slots=True)
class _Placeholder:
    """An argument that shows where it arrives."""

    name: str


def _by_own_names(
    call: Callable[..., Any], own: Mapping[str, inspect.Parameter] | None, given: Mapping[str, Any]
) -> Binding | None:
    if own is None or not _are_named(own):
        return None
    if any(one.default is inspect.Parameter.empty and name not in given for name, one in own.items()):
        return None
    taken = {name: value for name, value in given.items() if name in own}
    first = {name: taken.pop(name) for name, one in own.items() if one.kind is one.POSITIONAL_ONLY}
    return Binding(partial(call, *first.values(), **taken), frozenset(given) - set(own))


def _as_torch_calls(
    function: PrivateFunction,
    call: Callable[..., Any],
    own: Mapping[str, inspect.Parameter] | None,
    given: Mapping[str, Any],
) -> Binding | None:
    caller = _caller(function)
    heard = None if caller is None else _heard(function, caller, given)
    if caller is None or heard is None or (own is not None and not _fits(own, heard)):
        return None
    left_out = frozenset(given) - set(inspect.signature(caller).parameters)
    return Binding(partial(call, *heard[0], **heard[1]), left_out)


def _caller(function: PrivateFunction) -> FunctionType | None:
    caller = inspect.unwrap(getattr(torch.cuda.memory, function.caller or "_", _heard))
    return caller if isinstance(caller, FunctionType) and caller is not _heard else None


def _heard(
    function: PrivateFunction, caller: FunctionType, given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments that torch's *caller* passes on: it runs, and what listens stands for *function*."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    spied = _Instead(torch._C, function.name, lambda *args, **named: calls.append((args, named)))
    names = {"_C": spied, "torch": _Instead(torch, "_C", spied)}
    copy = FunctionType(
        caller.__code__,
        caller.__globals__ | {name: each for name, each in names.items() if name in caller.__globals__},
        caller.__name__,
        caller.__defaults__,
        caller.__closure__,
    )
    copy.__kwdefaults__ = caller.__kwdefaults__
    # What it does with the answer, which is None here, may fail.
    with suppress(Exception):
        copy(**{name: given[name] for name in inspect.signature(caller).parameters if name in given})
    return calls[0] if len(calls) == 1 else None


class _Instead:
    def __init__(self, module: Any, name: str, value: Any) -> None:
        self._of = (module, name, value)

    def __getattr__(self, name: str) -> Any:
        module, other, value = self._of
        return value if name == other else getattr(module, name)


def _own_parameters(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters that a function states itself; None where it states none or takes any."""
    try:
        stated: Mapping[str, inspect.Parameter] = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return _stated_by_pybind(call)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return None if any(one.kind in kinds for one in stated.values()) else stated


def _stated_by_pybind(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters in pybind11's docstring: ``name(arg0: str | None, arg1: bool = False) -> None``."""
    line = (call.__doc__ or "").partition("\n")[0]
    match = re.fullmatch(r"\w+\((.*)\) -> .*", line)
    if match is None or any(word in match[1] for word in ("*", "'", '"')):
        return None
    parts = re.findall(r"(\w+): (?:[^,\[\]=]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])+(= [^,]+)?", match[1])
    return {
        name: inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default or inspect.Parameter.empty
        )
        for name, default in parts
    }


def _are_named(own: Mapping[str, inspect.Parameter]) -> bool:
    """Whether the names say something: pybind11 writes ``arg0`` where the function gave none."""
    return bool(own) and not any(re.fullmatch(r"arg\d+", name) for name in own)


def _fits(own: Mapping[str, inspect.Parameter], heard: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    try:
        inspect.Signature(list(own.values())).bind(*heard[0], **heard[1])
    except (TypeError, ValueError):
        return False
    return True
