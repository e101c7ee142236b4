"""What if the optimizer were another: its state, and what its step needs besides?"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramscope.analysis.strategies.trials import (
    USUAL_ELEMENT,
    Looked,
    Tried,
    scaled,
)
from vramscope.model.marks import Category, Phase

_FUSED = ("Adam", "AdamW", "SGD")
"""Classes of torch.optim with ``fused=True`` on CUDA, in all versions since 2.1 or 2.2."""
_IN_A_LOOP = {
    "Adagrad": 2, "RMSprop": 2, "NAdam": 3, "RAdam": 2, "Adadelta": 3, "Adamax": 1, "ASGD": 1, "Rprop": 3,
}  # fmt: skip
"""So many times the largest parameter the others have at once with ``foreach=False``: measured."""
_WITH_8_BITS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Lion", "LAMB", "LARS")
"""Classes that bitsandbytes has."""
_UNKNOWN = ""
_USUAL = "AdamW"
_DOUBT = 0.015
"""Share of the peak: another place of blocks in segments moved it by up to 0.8 % in 16 models."""
_SMALLEST_8BIT = 4096
"""Elements: bitsandbytes keeps smaller tensors' state in 32 bits."""
_BYTES_8BIT = 1 + 4 / 256
"""One for each element, and a scale of four for every block of 256."""
_SECOND_STATES = ("exp_avg_sq of", "max_exp_avg_sq of", "step of")


def fused_optimizer(run: Looked) -> Iterator[Tried]:
    """Of a class that has it; where no temporaries are there, it is on already."""
    temporary = run.in_optimizer() & np.isin(run.made_by, (*_FUSED, _UNKNOWN))
    if temporary.any():
        yield Tried(
            "fused optimizer",
            scaled(run, (temporary, 0.0)),
            0,
            (
                f"torch.optim.{_names(run, temporary)}(…, fused=True)",
                "none: it is faster",
                "exact: what the optimizer's step allocates and frees again is not allocated",
            ),
            1,
        )


def optimizer_in_a_loop(run: Looked) -> Iterator[Tried]:
    """Of a class that cannot be fused: one parameter after the other."""
    temporary = run.in_optimizer() & np.isin(run.made_by, list(_IN_A_LOOP))
    if temporary.any():
        parameter = run.category == Category.PARAMETER
        largest = int(run.found.block_size[parameter].max(initial=0))
        most = max(_IN_A_LOOP[name] for name in np.unique(run.made_by[temporary]).tolist())
        yield Tried(
            "optimizer without foreach",
            scaled(run, (temporary, 0.0)),
            np.where(run.phase == Phase.OPTIMIZER, most * largest, 0),
            (
                f"torch.optim.{_names(run, temporary)}(…, foreach=False)",
                "the optimizer's step is slower: one kernel for each parameter and operation",
                f"estimate: {most} times the largest parameter instead of the temporaries of all",
            ),
            1,
            Category.TEMPORARY,
        )


def state_in_8_bits(run: Looked) -> Iterator[Tried]:
    """As bitsandbytes keeps it; its step allocates nothing."""
    element, classes = _element(run), (*_WITH_8_BITS, _UNKNOWN)
    state = (run.category == Category.OPTIMIZER_STATE) & _is_of(run, classes) & (element > 1)
    state &= run.found.size >= element * _SMALLEST_8BIT
    if state.any():
        yield Tried(
            "optimizer state in 8 bits",
            scaled(run, (state, _BYTES_8BIT / element), (run.in_optimizer(), 0.0)),
            0,
            (
                f"bitsandbytes.optim.{_names(run, state)}8bit(…)",
                "quantized moments: compare the loss over the first hundred steps",
                "closed form: a byte for each element, a scale for each 256; its step allocates nothing",
            ),
            2,
            doubt=_DOUBT,
        )


def one_moment(run: Looked) -> Iterator[Tried]:
    """Without the second moment that Adam keeps."""
    names = np.array([*run.recording.labels.names, _UNKNOWN])
    is_second = np.array([name.startswith(_SECOND_STATES) for name in names.tolist()])
    label = np.append(run.recording.labels.name, len(names) - 1)[run.assigned.label]
    second = (run.category == Category.OPTIMIZER_STATE) & is_second[label] & _is_of(run, ("Adam", "AdamW"))
    if second.any():
        yield Tried(
            "optimizer with one moment",
            scaled(run, (second | run.in_optimizer(), 0.0)),
            0,
            (
                "torch.optim.SGD(…, momentum=0.9), or Lion",
                "another optimizer: learning rate and schedule must be tuned again",
                "exact: the second moment and the temporaries that it takes are not there",
            ),
            3,
            doubt=_DOUBT,
        )


def offloaded(run: Looked) -> Iterator[Tried]:
    """Neither state nor temporaries."""
    state = run.category == Category.OPTIMIZER_STATE
    if state.any():
        yield Tried(
            "optimizer on the CPU",
            scaled(run, (state | run.in_optimizer(), 0.0)),
            0,
            (
                "torchao.optim.CPUOffloadOptimizer(…), or DeepSpeed ZeRO-Offload",
                "each step waits for gradients to go to the CPU and parameters to come back",
                "exact: neither state nor the optimizer's temporaries are on the GPU",
            ),
            3,
            doubt=_DOUBT,
        )


def _element(run: Looked) -> NDArray[Any]:
    return np.where(run.element > 0, run.element, USUAL_ELEMENT)


def _is_of(run: Looked, classes: Sequence[str]) -> NDArray[Any]:
    """What an optimizer of these classes made, and what is from before the recording if all are of these."""
    is_before = (run.born_in != Phase.OPTIMIZER) & _classes(run).issubset(classes)
    mine: NDArray[Any] = is_before | ((run.born_in == Phase.OPTIMIZER) & np.isin(run.made_by, classes))
    return mine


def _names(run: Looked, rows: NDArray[Any]) -> str:
    """The class that most of the bytes are of."""
    rows = rows & (run.born_in == Phase.OPTIMIZER)
    if not rows.any():  # from before the recording
        return min(_classes(run), default=_UNKNOWN) or _USUAL
    names, at = np.unique(run.made_by[rows], return_inverse=True)
    n_bytes = np.bincount(at.reshape(-1), run.found.block_size[rows])
    return str(names[n_bytes.argmax()]) or _USUAL


def _classes(run: Looked) -> set[str]:
    phases = run.lives.phases
    return {phases.names[name] for name in np.unique(phases.name[phases.phase == Phase.OPTIMIZER]).tolist()}
