"""Strategies with smaller batches: accumulated gradients, evaluation in halves, the loss in chunks."""

from collections.abc import Iterator

import numpy as np

from vramscope.analysis.accumulation import without_backward
from vramscope.analysis.by_module import owners_of
from vramscope.analysis.folding import files_ending, functions_named
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.logits import is_chunked, of_logits
from vramscope.analysis.step_and_phase import are_in_evaluations, steps_of
from vramscope.analysis.strategies.trials import (
    TRAINS,
    SizeChange,
    StrategyInput,
    StrategyTrial,
    level_with,
    scaled,
)
from vramscope.model.marks import Category, Phase
from vramscope.model.stacks import Stacks
from vramscope.model.table import Array
from vramscope.package_data import words

_MICRO_BATCHES = 2
_OF_A_BATCH = (Category.ACTIVATION, Category.INPUT)
_OF_AN_EVALUATION = (Category.ACTIVATION, Category.TEMPORARY, Category.UNKNOWN)
_OF_SAMPLES = words(__file__, "batches.tsv", "of_samples")
_LAYERS = tuple(f"torch/nn/modules/{name}.py" for name in _OF_SAMPLES["layers"].split())
"""Files whose results have a row for each sample."""
_FUNCTIONS = frozenset(_OF_SAMPLES["functions"].split())
"""The same of the functions in torch/nn/functional.py."""


def accumulation(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Split each batch in two, and add up the gradients."""
    of_step = np.isin(run.born_in, TRAINS) & (run.category == Category.TEMPORARY)
    of_batch = (np.isin(run.category, _OF_A_BATCH) | of_step) & ~_of_evaluation(run)
    of_batch &= ~without_backward(run.recording, run.found, run.category == Category.INPUT)
    # Which allocations live through a whole step after their own, and are kept then, not used up. What
    # keeps a tensor of each batch keeps two of the halves; a batch that is fetched ahead is used next.
    found, ends = run.found, run.recording.steps.end_event
    dies = np.where(found.free_event >= 0, found.free_event, np.iinfo("i8").max)
    kept_on = of_batch & (
        np.searchsorted(ends, dies) - np.searchsorted(ends, found.alloc_event, side="right") > 1
    )
    of_one = of_batch & ~_of_lines(found, kept_on)
    gradient, part = run.category == Category.GRADIENT, 1 / _MICRO_BATCHES
    if not of_batch.any() or _accumulates(run):
        return
    level = level_with(run, gradient.astype(float), 0)
    largest = int(run.found.block_size[gradient].max(initial=0))
    # From the second micro-batch on all gradients are allocated, and each new one too until it is added.
    kept = np.where(np.isin(run.phase, TRAINS), level.max(initial=0) - level, 0)
    extra = kept + np.where(run.phase == Phase.BACKWARD, largest, 0)
    yield StrategyTrial(
        "accumulation" if _has_batches(run) else "accumulation_of_rows",
        scaled(run, (of_batch & ~kept_on, part)),
        extra,
        {"batches": _MICRO_BATCHES},
        # What holds a value for each pair of a batch shrinks quadratically; what is not certain to hold
        # samples does not shrink at all.
        least=SizeChange(scaled(run, (of_batch, part**2)), kept),
        most=SizeChange(scaled(run, (of_one & _has_samples(run, of_batch), part)), extra),
    )


def _has_batches(run: StrategyInput) -> bool:
    """Return whether batches are loaded, or most steps make inputs: one for all may be a graph."""
    starts, given = run.recording.steps.start_event, run.found.alloc_event[run.category == Category.INPUT]
    n_steps = np.count_nonzero(np.unique(np.searchsorted(starts, given, side="right")))
    loads = bool((run.lives.phases.phase == Phase.DATA).any())
    return loads or 2 * n_steps > len(starts) or not len(given)


def _of_evaluation(run: StrategyInput) -> Array:
    """Return which allocations evaluations make: batches of their own, which training does not divide."""
    inside = are_in_evaluations(run.recording.steps, run.lives.phases, run.found.alloc_event)
    # Which inputs are gone before training goes on: an evaluation's own, made right before it.
    phases, found = run.lives.phases, run.found
    starts = (np.sort(phases.start_event[phases.phase == each]) for each in (Phase.EVAL, Phase.FORWARD))
    last = np.iinfo("i8").max
    evaluates, trains = (np.append(at, last)[np.searchsorted(at, found.alloc_event)] for at in starts)
    is_gone = (found.free_event >= 0) & (found.free_event <= trains) & (evaluates < trains)
    return inside | (run.born_in == Phase.EVAL) | is_gone & (run.category == Category.INPUT)


def _has_samples(run: StrategyInput, of_batch: Array) -> Array:
    """Return which allocations have a row for each sample: inputs, and what layers of torch.nn make.

    So does whatever has the size of such a result, but nothing that is as large as a parameter.
    """
    owners = owners_of(run.recording, run.found, run.assigned)
    # What the program's own lines made, or operations on their results, may hold a value for each pair of a
    # batch, or the same values for every batch, where layers of torch.nn have one row for each sample. In
    # backward it is what was made for such or for unknown forwards.
    is_own = ~_are_of_layers(run.recording.stacks)[run.found.stack_id]
    in_backward = run.lives.phase == Phase.BACKWARD
    is_own[in_backward] = np.append(is_own, True)[owners.forward[in_backward]]
    is_one = run.category == Category.PARAMETER
    weights = np.unique(run.found.size[is_one])
    weights = np.union1d(weights, np.unique(run.found.size[run.category == Category.BUFFER]))
    in_forward = np.isin(run.born_in, (Phase.FORWARD, Phase.LOSS, Phase.EVAL))
    by_layer = of_batch & ~is_own & in_forward & ~np.isin(run.found.size, weights)
    sizes = np.unique(run.found.size[by_layer | (run.category == Category.INPUT)])
    mine: Array = np.isin(run.found.size, np.setdiff1d(sizes, weights))
    mine |= run.category == Category.INPUT
    return mine


def smaller_evaluation(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Halve the batch of evaluation, if the peak is in evaluation and not in training."""
    at = int(run.level_bytes.argmax())
    if run.phase[at] != Phase.EVAL:
        return
    kind = _way_of_halving(run, at)
    of_evaluation = (run.born_in == Phase.EVAL) & np.isin(run.category, _OF_AN_EVALUATION)
    # What is there when the forward after the next one begins is kept: of two halves as much as of the whole.
    # A name has its value until the next one is made.
    found, begins = run.found, np.sort(run.lives.phases.start_event[run.lives.phases.phase == Phase.EVAL])
    dies = np.where(found.free_event >= 0, found.free_event, np.iinfo("i8").max)
    born, gone = (np.searchsorted(begins, at, side="right") for at in (found.alloc_event, dies))
    is_kept, joined_bytes = gone - born > 1, 0
    if kind == "target_in_parts":  # the rest of the step may read what this forward leaves
        left = of_evaluation & (run.phase[np.minimum(dies, len(run.phase) - 2) + 1] != Phase.EVAL)
        is_kept |= left
        joined_bytes = int(np.bincount(run.lives.born_in[left], found.block_size[left], 1).max())
    kept = of_evaluation & _of_lines(found, of_evaluation & is_kept)
    of_evaluation &= ~kept
    yield StrategyTrial(
        kind,
        scaled(run, (of_evaluation, 1 / 2)),
        # The first half is there while the second is made, and both while they are joined.
        joined_bytes // 2,
        # Results that are joined on the CPU are not kept here.
        least=SizeChange(scaled(run, (of_evaluation | (run.category == Category.INPUT), 1 / 4), (kept, 0.0))),
        most=SizeChange(scaled(run, (of_evaluation & _has_samples(run, of_evaluation), 1 / 2)), joined_bytes),
    )


def _way_of_halving(run: StrategyInput, at: int) -> str:
    """Return the strategy that halves the evaluation at an instant: who makes its batches decides.

    Within a step that trains, the step may read what a forward without gradients makes, as a teacher's.
    """
    steps, phases = run.recording.steps, run.lives.phases
    (step,), loads = steps_of(steps, np.array([at - 1])), phases.start_event[phases.phase == Phase.DATA]
    if step < 0:
        loads = loads[are_in_evaluations(steps, phases, loads)]
    elif np.isin(phases.phase[phases.step == step], TRAINS).any():
        return "target_in_parts"
    return "smaller_evaluation" if len(loads) else "evaluation_in_parts"


def _of_lines(found: Allocations, kept: Array) -> Array:
    """Return which allocations are of the lines and sizes of those *kept*: the last outlast nothing yet."""
    kind = found.stack_id * (found.size.max(initial=0) + 1) + found.size
    mine: Array = np.isin(kind, kind[kept])
    return mine


def _accumulates(run: StrategyInput) -> bool:
    """Return whether most of the optimizer's steps come after several backwards."""
    phases = run.lives.phases
    ends = np.unique(phases.start_event[phases.phase == Phase.OPTIMIZER])
    backward = phases.start_event[(phases.phase == Phase.BACKWARD) & (phases.depth == 0)]
    count = np.bincount(np.searchsorted(ends, backward), minlength=len(ends))[: len(ends)]
    return bool(len(ends)) and bool(2 * np.count_nonzero(count > 1) > len(ends))


def _are_of_layers(stacks: Stacks) -> Array:
    is_function = functions_named(stacks, _FUNCTIONS) & files_ending(stacks, "torch/nn/functional.py")
    return files_ending(stacks, _LAYERS) | is_function


_CHUNKS = 8
_LEAST_SHARE = 0.2
_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


def loss_in_chunks(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Keep one chunk of the logits at a time, where these are a fifth of the peak."""
    rows = of_logits(run.recording, run.found) & np.isin(run.born_in, _PHASES)
    at = int(run.level_bytes.argmax())
    n_bytes = int(run.found.block_size[rows & run.found.allocated_at(at)].sum())
    if n_bytes < _LEAST_SHARE * run.level_bytes[at] or not n_bytes or is_chunked(run.recording, run.found):
        return
    # What backward makes of the logits' gradient and lets go of before it, as for the sum of a bias.
    of_backward, born, ends = run.born_in == Phase.BACKWARD, run.found.alloc_event, run.found.free_event
    around = np.flatnonzero(rows & of_backward)
    last = around[np.searchsorted(born[around], born) - 1] if len(around) else np.zeros(len(rows), "i8")
    made_of = of_backward & ~rows & (run.category == Category.TEMPORARY) & (born > born[last])
    made_of &= (ends >= 0) & (ends < ends[last])
    # Each chunk adds to the gradient of the head, which is there twice meanwhile.
    head = int(run.found.block_size[run.category == Category.PARAMETER].max(initial=0))
    extra = np.where(np.isin(run.phase, (Phase.LOSS, Phase.BACKWARD)), head, 0)
    yield StrategyTrial(
        "loss_in_chunks",
        scaled(run, (rows | made_of, 1 / _CHUNKS)),
        extra,
        {"chunks": _CHUNKS},
        least=SizeChange(scaled(run, (rows | made_of, 0.0))),
        most=SizeChange(scaled(run, (rows, 2 / _CHUNKS)), 2 * extra),
    )
