"""Finds activations that nothing needs, or that checkpointing makes again all at once, at the peak."""

from dataclasses import dataclass, replace

import numpy as np

from vramscope.analysis import Analysis
from vramscope.analysis.by_module import ModuleEvidence, Owners, owners_of
from vramscope.analysis.categories import Assigned, assign, undivided
from vramscope.analysis.categories.by_lifetime import Lives, lives_of
from vramscope.analysis.lifetimes import Allocations, lifetimes
from vramscope.analysis.lines import module_words
from vramscope.analysis.strategies.checkpointing import whole_regions
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind, NoteCode
from vramscope.model.finding import Finding
from vramscope.model.marks import Category, Phase
from vramscope.model.recording import Recording

_LEAST_BYTES = 1 << 20
_LEAST_FROZEN = 0.05
"""Share of the peak from which on activations of frozen modules are worth a word."""
_LEAST_RECOMPUTED = 0.4
"""Share of the peak that one region must recompute at once."""


@dataclass(frozen=True, slots=True)
class KeptActivations:
    """Activations at the peak that could go."""

    peak_bytes: int = 0
    frozen_bytes: int = 0
    """Activations of modules without a trained parameter that run before all that have one."""
    frozen: str = ""
    """The path that these modules share most of the bytes under."""
    recomputed_bytes: int = 0
    """Activations of one recompute that runs several blocks."""
    blocks: tuple[str, ...] = ()
    """These blocks."""
    idle: str = ""
    """Where checkpointing is switched on and recomputes nothing, as capture noted it."""
    idle_bytes: int = 0
    """All activations at the peak, in that case."""
    n_in_eval_mode: int = 0
    """The modules of these that run in eval mode."""


def kept_activations(recording: Recording) -> KeptActivations:
    """Find activations of frozen modules, and of checkpointed regions of several blocks, at the peak."""
    labels = recording.labels
    if not len(recording.phases) or not (labels.category == Category.PARAMETER).any():
        return KeptActivations()
    found = lifetimes(recording)
    assigned, lives = undivided(assign(recording, found)), lives_of(recording, found)
    owners = owners_of(recording, found, assigned)
    level = timeline(recording).allocated_bytes
    at = int(level.argmax())
    live = found.allocated_at(at)
    frozen, n_frozen = _frozen(recording, found, (assigned, lives, owners), live)
    n_bytes = 0
    blocks: tuple[str, ...] = ()
    for phase, names in whole_regions(found, lives, owners).items():
        mine = int(found.block_size[live & (lives.born_in == phase)].sum())
        if mine > n_bytes:
            blocks, n_bytes = names, mine
    said = [note for note in recording.notes if note.code == NoteCode.CHECKPOINTS_IDLE]
    idle = said[-1] if said and not (recording.phases.phase == Phase.RECOMPUTE).any() else None
    activations = int(found.block_size[live & (assigned.category == Category.ACTIVATION)].sum())
    return KeptActivations(
        int(level[at]),
        n_frozen,
        frozen,
        n_bytes,
        blocks,
        *((idle.text, activations, idle.value) if idle is not None else ()),
    )


def _frozen(
    recording: Recording,
    found: Allocations,
    known: tuple[Assigned, Lives, Owners],
    live: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
) -> tuple[str, int]:
    """Return the frozen part of the model that keeps most, and its bytes; '' if there is none for certain."""
    assigned, lives, owners = known
    labels = recording.labels
    of = {
        category: {
            labels.names[name].rpartition(" of ")[2].rpartition(".")[0]
            for name in np.unique(labels.name[labels.category == category]).tolist()
        }
        for category in (Category.PARAMETER, Category.GRADIENT)
    }
    trained = of[Category.GRADIENT]
    kept = live & (assigned.category == Category.ACTIVATION) & (lives.phase == Phase.FORWARD)
    kept &= owners.known == ModuleEvidence.CALL
    # What a captured CUDA graph computes with stays in its private pool.
    kept &= recording.trace.pool[np.maximum(found.alloc_event, 0)] == 0
    # A tensor that is trained and belongs to no module that ran may be an input of any.
    if not trained or "" in trained or not kept.any() or not trained <= of[Category.PARAMETER]:
        return "", 0
    is_trained = np.array([any(_within(path, each) for each in trained) for path in owners.paths], "?")
    trains = (lives.phase == Phase.FORWARD) & is_trained[owners.module] & (lives.step >= 0)
    begins = np.full(len(recording.steps) + 1, np.iinfo("i8").max)
    np.minimum.at(begins, lives.step[trains], found.alloc_event[trains])
    early = kept & (lives.step >= 0) & (found.alloc_event < begins[lives.step])
    if not trains.any():
        return "", 0
    sums: dict[str, int] = {}
    for row in np.flatnonzero(early).tolist():
        top = _top(owners.paths[owners.module[row]], trained, of[Category.PARAMETER])
        if top:
            sums[top] = sums.get(top, 0) + int(found.block_size[row])
    return max(sums.items(), key=lambda each: each[1], default=("", 0))


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


def findings(found: KeptActivations) -> list[Finding]:
    """Return a finding for what is frozen, and for one region around several blocks."""
    said = []
    if found.frozen_bytes >= max(_LEAST_BYTES, _LEAST_FROZEN * found.peak_bytes):
        frozen = worded(FindingKind.FROZEN_ACTIVATIONS, found.frozen_bytes, frozen=module_words(found.frozen))
        said.append(replace(frozen, module=found.frozen))
    is_much = found.recomputed_bytes >= max(_LEAST_BYTES, _LEAST_RECOMPUTED * found.peak_bytes)
    if len(found.blocks) > 1 and is_much:
        n_blocks, which = len(found.blocks), f"{found.blocks[0]} … {found.blocks[-1]}"
        kind = FindingKind.CHECKPOINT_OF_ALL
        said.append(worded(kind, found.recomputed_bytes, blocks=n_blocks, which=which))
    if found.idle:
        to_do = (
            "call model.train() before the training: such modules checkpoint in train mode alone"
            if found.n_in_eval_mode
            else "they do not checkpoint with use_cache=True, nor with use_reentrant=True where no input "
            "requires a gradient: model.enable_input_require_grads(), or use_reentrant=False"
        )
        said.append(worded(FindingKind.CHECKPOINTS_IDLE, found.idle_bytes, idle=found.idle, to_do=to_do))
    return said


ANALYSIS = Analysis(
    "kept_activations",
    "Which activations at the peak does nothing need, or does checkpointing make again all at once?",
    kept_activations,
    findings,
)
