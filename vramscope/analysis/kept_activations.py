"""Finds activations that nothing needs, or that checkpointing makes again all at once, at the peak."""

from dataclasses import replace

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.accumulation import trains
from vramscope.analysis.by_module import ModuleEvidence, Owners, owners_of
from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.categories.by_lifetime import Lives, lives_of
from vramscope.analysis.folding import heaviest_line, passes_through
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.lines import common_module, module_words
from vramscope.analysis.strategies.checkpointing import whole_regions
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind, NoteCode
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Labels, MarkKind, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.table import Array, rows_within

_LEAST_BYTES = 1 << 20
_LEAST_FROZEN = 0.05
"""Share of the peak from which on activations of frozen modules are worth a word."""
_LEAST_BLOCK = 512
"""Bytes of the smallest block: a loss's."""
_LEAST_RECOMPUTED = 0.4
"""Share of the peak that one region must recompute at once."""
_IN_EVAL_MODE = "call model.train() before the training: such modules checkpoint in train mode alone"
_ONE_SEGMENT = "checkpoint_sequential() has one segment alone, and never checkpoints the last one"
_MORE_SEGMENTS = "give it more segments, up to one for each layer"
_AFTER_EVALUATION = "call model.train() after an evaluation: transformers checkpoints in train mode alone"
_LEAST_STEPS = 3
_LEAST_KEPT, _LEAST_OF_NO_BACKWARD = 4, 0.3
"""Blocks that one forward leaves, and the share of the peak, where no backward comes."""
_IN_TRAIN_MODE = (
    "they do not checkpoint with use_cache=True, nor with use_reentrant=True where no input requires a "
    "gradient: model.enable_input_require_grads(), or use_reentrant=False"
)


def kept_activations(recording: Recording) -> list[Finding]:
    """Find activations of frozen modules, and of checkpointed regions of several blocks, at the peak."""
    labels = recording.labels
    if not len(recording.phases) or not (labels.category == Category.PARAMETER).any():
        return []
    found = lifetimes(recording)
    assigned, lives = undivided(assign(recording, found)), lives_of(recording, found)
    owners = owners_of(recording, found, assigned)
    level = timeline(recording).allocated_bytes
    at = int(level.argmax())
    live, peak_bytes = found.allocated_at(at), int(level[at])
    said = []
    known, least = (assigned, lives, owners), max(_LEAST_BYTES, _LEAST_FROZEN * peak_bytes)
    frozen, n_frozen = _frozen(recording, found, known, live)
    if n_frozen >= least:
        finding = worded(FindingKind.FROZEN_ACTIVATIONS, n_frozen, frozen=module_words(frozen))
        said.append(replace(finding, module=frozen))
    rows, part = _unused(recording, found, known, at)
    if (n_bytes := int(found.block_size[rows].sum())) >= least:
        frame = heaviest_line(recording.stacks, found.stack_id[rows], found.block_size[rows])
        said.append(worded(FindingKind.GRADIENTS_UNUSED, n_bytes, frame, part=module_words(part)))
    regions = [
        (int(found.block_size[live & (lives.born_in == phase)].sum()), blocks)
        for phase, blocks in whole_regions(found, lives, owners).items()
    ]
    n_bytes, blocks = max(regions, key=lambda each: each[0], default=(0, ()))
    if len(blocks) > 1 and n_bytes >= max(_LEAST_BYTES, _LEAST_RECOMPUTED * peak_bytes):
        which = f"{blocks[0]} … {blocks[-1]}"
        said.append(worded(FindingKind.CHECKPOINT_OF_ALL, n_bytes, blocks=len(blocks), which=which))
    kept = live & (assigned.category == Category.ACTIVATION)
    said += _of_last_segment(recording, found, kept & (lives.phase == Phase.FORWARD))
    said += _without_backward(recording, found, lives, live & (found.block_size > _LEAST_BLOCK), at)
    return said + _idle(recording, int(found.block_size[kept].sum()), at)


def _without_backward(
    recording: Recording, found: Allocations, lives: Lives, live: Array, at: int
) -> list[Finding]:
    """Find what forwards with gradients left at the peak, where no backward comes in a whole recording."""
    if trains(recording) is not False:
        return []
    phases = recording.phases
    forwards = phases.rows((phases.phase == Phase.FORWARD) & (phases.depth == 0))
    if not len(forwards):
        return []
    # A forward that runs at the peak keeps what it has made if it still keeps that when it ends.
    of = np.searchsorted(forwards.start_event, found.alloc_event, side="right") - 1
    rows = live & (lives.phase == Phase.FORWARD) & (of >= 0) & (lives.dies >= forwards.end_event[of])
    n_bytes = int(found.block_size[rows].sum())
    n_blocks = np.bincount(of[rows]).max(initial=0)  # a result by itself is one or few
    if n_blocks < _LEAST_KEPT or n_bytes < _LEAST_OF_NO_BACKWARD * timeline(recording).allocated_bytes[at]:
        return []
    frame = heaviest_line(recording.stacks, found.stack_id[rows], found.block_size[rows])
    return [worded(FindingKind.NO_BACKWARD, n_bytes, frame, forwards=len(forwards))]


def _of_last_segment(recording: Recording, found: Allocations, kept: Array) -> list[Finding]:
    """Return a finding if ``checkpoint_sequential`` keeps activations and checkpoints no segment."""
    within, checkpointed = (
        passes_through(recording.stacks, name, "torch/utils/checkpoint.py")
        for name in ("checkpoint_sequential", "checkpoint")
    )
    n_bytes = int(found.block_size[kept & within[found.stack_id]].sum())
    if n_bytes < _LEAST_BYTES or (within & checkpointed).any():
        return []
    return [worded(FindingKind.CHECKPOINTS_IDLE, n_bytes, idle=_ONE_SEGMENT, to_do=_MORE_SEGMENTS)]


def _idle(recording: Recording, n_bytes: int, at: int) -> list[Finding]:
    """Return a finding where checkpointing recomputes nothing, as noted, or no longer at the peak."""
    notes = [note for note in recording.notes if note.code == NoteCode.CHECKPOINTS_IDLE]
    phases, step = recording.phases, np.searchsorted(recording.steps.start_event, at, side="right") - 1
    if notes and not (phases.phase == Phase.RECOMPUTE).any():
        # The value is the number of these modules that run in eval mode.
        to_do = _IN_EVAL_MODE if notes[-1].value else _IN_TRAIN_MODE
        return [worded(FindingKind.CHECKPOINTS_IDLE, n_bytes, idle=notes[-1].text, to_do=to_do)]
    again, trained = (
        np.unique(phases.step[(phases.phase == each) & (phases.step >= 0)])
        for each in (Phase.RECOMPUTE, Phase.BACKWARD)
    )
    last = int(again.max(initial=-1))
    is_pattern = min(len(again), int((trained > last).sum())) >= _LEAST_STEPS
    if not is_pattern or step <= last or n_bytes < _LEAST_BYTES:
        return []
    idle = f"steps {again[0]} to {last} recompute what is checkpointed, and no later one does"
    return [worded(FindingKind.CHECKPOINTS_IDLE, n_bytes, idle=idle, to_do=_AFTER_EVALUATION)]


def _frozen(
    recording: Recording, found: Allocations, known: tuple[Assigned, Lives, Owners], live: Array
) -> tuple[str, int]:
    """Return the frozen part of the model that keeps most, and its bytes; '' if there is none for certain."""
    trained, parameters = (
        set(map(_module, _names(recording.labels, recording.labels.category == category)))
        for category in (Category.GRADIENT, Category.PARAMETER)
    )
    # A tensor that is trained and belongs to no module that ran may be an input of any.
    if not trained or "" in trained or not trained <= parameters:
        return "", 0
    # What a captured CUDA graph computes with stays in its private pool.
    live = live & (recording.trace.pool[np.maximum(found.alloc_event, 0)] == 0)
    sums: dict[str, int] = {}
    owners = known[2]
    for row in _before_training(found, known, live, trained, np.ones(len(found), "?")).tolist():
        top = _top(owners.paths[owners.module[row]], trained, parameters)
        if top:
            sums[top] = sums.get(top, 0) + int(found.block_size[row])
    return max(sums.items(), key=lambda each: each[1], default=("", 0))


def _unused(
    recording: Recording, found: Allocations, known: tuple[Assigned, Lives, Owners], at: int
) -> tuple[Array, str]:
    """Return what is kept at the peak for gradients that no optimizer uses, and the part of the model.

    An optimizer's ``zero_grad()`` clears them before it steps, in half of the steps at least, while another
    steps with what the same backward makes: a generator whose output is not detached for the discriminator.
    """
    assigned, phases, nothing = known[0], recording.phases, np.zeros(0, "i8")
    backwards = phases.rows((phases.phase == Phase.BACKWARD) & (phases.depth == 0))
    calls, row = _optimizers(recording), int((backwards.end_event <= at).sum())
    if row == len(backwards) or len(calls) < 2:
        return nothing, ""
    start, end = int(backwards.start_event[row]), int(backwards.end_event[row])
    # The phase of the first call of each optimizer that ends after a backward begins.
    follows = {
        each: np.append(own.phase, Phase.OTHER)[
            np.searchsorted(own.end_event, backwards.start_event, "right")
        ]
        for each, own in calls.items()
    }
    unused = [each for each, phase in follows.items() if phase[row] == Phase.ZERO_GRAD]
    # What is left beside parameters' gradients may be the gradient of an input, which passes through all.
    left = (found.alloc_event >= start) & found.allocated_at(end) & (assigned.label < 0)
    left &= (found.block_size > _LEAST_BLOCK) & (assigned.category != Category.WORKSPACE)
    if len(unused) != 1 or left.any() or not any(each[row] == Phase.OPTIMIZER for each in follows.values()):
        return nothing, ""
    is_unused = follows[unused[0]] == Phase.ZERO_GRAD
    if (np.unique(backwards.step[is_unused]) >= 0).sum() < max(2, len(recording.steps) / 2):
        return nothing, ""
    clears = calls[unused[0]].rows(calls[unused[0]].phase == Phase.ZERO_GRAD)
    begin = np.append(clears.start_event, 1 << 62)
    is_cleared = begin[np.searchsorted(clears.end_event, found.free_event, "right")] <= found.free_event
    is_cleared &= (assigned.category == Category.GRADIENT) & (assigned.label >= 0)
    # Later ones add to a gradient where it is: one that makes it shows that they reach this part.
    makes = rows_within(backwards.start_event, backwards.end_event, found.alloc_event)
    is_made = is_cleared & (makes >= 0) & is_unused[makes]
    labels, names = recording.labels, _names(recording.labels, assigned.label[is_cleared])
    trained = {_module(name) for name in _names(labels, labels.category == Category.PARAMETER) - names}
    if "" in trained or not is_made.any():
        return nothing, ""
    is_freed = found.allocated_at(start) & (found.free_event >= start) & (found.free_event < end)
    rows = _before_training(found, known, is_freed & found.allocated_at(at), trained, is_freed)
    # The result stays in any case, as the input of what follows.
    result = known[2].module[rows[-1:]]
    return rows[~np.isin(known[2].module[rows], result)], common_module(map(_module, names))


def _names(labels: Labels, rows: Array) -> set[str]:
    """Return the parameters that these labels name."""
    return {labels.names[name].rpartition(" of ")[2] for name in np.unique(labels.name[rows]).tolist()}


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _optimizers(recording: Recording) -> dict[int, Phases]:
    """Return the steps and ``zero_grad()`` of each optimizer that steps, in order."""
    marks, phases, kinds = recording.marks, recording.phases, (Phase.OPTIMIZER, Phase.ZERO_GRAD)
    begun = marks.rows((marks.kind == MarkKind.PHASE_BEGIN) & np.isin(marks.phase, kinds))
    calls = phases.rows(np.isin(phases.phase, kinds))
    if len(begun) != len(calls):
        return {}
    steps = np.unique(begun.value[begun.phase == Phase.OPTIMIZER])
    return {each: calls.rows(begun.value == each) for each in steps.tolist()}


def _before_training(
    found: Allocations, known: tuple[Assigned, Lives, Owners], live: Array, trained: set[str], among: Array
) -> Array:
    """Return which activations of *live* modules made before the first of *trained* ran in their step."""
    assigned, lives, owners = known
    kept = live & (assigned.category == Category.ACTIVATION) & (lives.phase == Phase.FORWARD)
    kept &= owners.known == ModuleEvidence.CALL
    is_trained = np.array([any(_within(path, each) for each in trained) for path in owners.paths], "?")
    trains = (lives.phase == Phase.FORWARD) & is_trained[owners.module] & (lives.step >= 0) & among
    begins = np.full(int(lives.step.max(initial=0)) + 2, np.iinfo("i8").max if trains.any() else -1)
    np.minimum.at(begins, lives.step[trains], found.alloc_event[trains])
    return np.flatnonzero(kept & (lives.step >= 0) & (found.alloc_event < begins[lives.step]))


def _top(path: str, trained: set[str], parameters: set[str]) -> str:
    """Return the largest part of the model around *path* that has parameters, none of which is trained."""
    words = path.split(".")
    for n in range(1, len(words) + 1):
        part = ".".join(words[:n])
        if any(_within(each, part) for each in trained):
            continue
        return part if any(_within(each, part) for each in parameters) else ""
    return ""


def _within(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}.")


ANALYSIS = asking("Which activations at the peak does nothing need?", kept_activations, list)
