"""Finds what nothing uses at the peak, and what holds it: an exception, a copy of the weights, garbage.

And what is left when a program has let go of all its tensors: the workspaces of libraries.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.by_module import ModuleEvidence, owners_of
from vramscope.analysis.categories import Assigned, Reason, assign, last_known, names_of, undivided
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.folding import fold, heaviest_line, passes_through
from vramscope.analysis.leaks import leaks
from vramscope.analysis.leaks.causes import ADVICE
from vramscope.analysis.leaks.edits import NO_SELF
from vramscope.analysis.leaks.holders import OF_NOTEBOOKS, holder_name, keep_self, recorded_holdings
from vramscope.analysis.lifetimes import ALIVE, Allocations, lifetimes
from vramscope.analysis.step_and_phase import steps_of
from vramscope.analysis.strategies.gradients import of_parameters
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind, LeakCause
from vramscope.model.finding import Finding
from vramscope.model.holders import Holding
from vramscope.model.marks import ROOT_MODULE, Category, Phase
from vramscope.model.recording import Outcome, Recording
from vramscope.model.table import Array

_LEAST_BYTES = 1 << 20
_LEAST_SHARE = 0.05
"""Share of the peak from which on it is worth a word."""
_LEAST_OF_WEIGHTS = 0.9
"""Share of the parameters' bytes that blocks of the same sizes must make up to be a copy of them."""
_MOST_LEFT = 0.01
"""Share of what the program had at its peak that may be left where it let go of all."""
_LEAST_OF_CAST = 0.5
"""Share of the parameters' bytes, halved, that copies of half their size must have."""
_KEEPERS = {OF_NOTEBOOKS: "notebook.", "sys.": "sys.", "an unnamed ": "handled."}
"""The wording for an exception by how the name of what keeps it begins."""
_OF_MODEL = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
_LEAST_STEPS = 4
"""Steps each of which leaves something, from which on it is a collection: inputs with gradients, results."""
_LEAST_RESIDENT = 0.3  # of the peak, for data that are there all the time
_OF_WEIGHTS = (FindingKind.WEIGHTS_COPIED, FindingKind.MODELS_LEFT)
_LOADERS = (("load", "torch/serialization.py"), ("load_file", "safetensors/torch.py"))


def held_once(recording: Recording) -> list[Finding]:
    """Find what nothing uses at the peak, by what holds it; what grows from step to step is left to leaks."""
    found, level = lifetimes(recording), timeline(recording).allocated_bytes
    if not len(found) or not len(recording.steps):
        return []
    at = int(level.argmax())
    live = found.allocated_at(at)
    for leak in leaks(recording).leaks:
        # The rows of a leak are those since the first step that was compared.
        live &= ~np.isin(found.stack_id, found.stack_id[leak.rows])
    assigned, holdings = undivided(assign(recording, found)), recorded_holdings(recording, found)
    line = fold(recording.stacks).of[found.stack_id]
    copies = _copies(recording, found, assigned, live, at)
    over, idle = _of_earlier_trainings(recording, found, assigned, live, at)
    loose = live & ~np.isin(assigned.category, _OF_MODEL)
    is_loaded = np.logical_or(*(passes_through(recording.stacks, *loader) for loader in _LOADERS))
    read, models = is_loaded[found.stack_id], _models(recording, found, assigned)
    rows = {
        FindingKind.EXCEPTION_KEPT: _of_exceptions(recording, found, loose, holdings, at),
        FindingKind.WEIGHTS_LOADED: _like_weights(models, found, copies & read),
        FindingKind.WEIGHTS_COPIED: _like_weights(models, found, copies & ~read),
        FindingKind.GARBAGE: _garbage(recording, found, live, holdings, line),
        FindingKind.MODELS_LEFT: over,
        f"before.{FindingKind.MODELS_LEFT}": idle,
        FindingKind.PARAMETERS_REPLACED: _of_no_module(recording, found, assigned, live),
        f"inputs.{FindingKind.GRADIENTS_NEVER_CLEARED}": _of_inputs(
            recording, found, assigned, live, holdings
        ),
        FindingKind.GRADIENTS_RETAINED: _of_activations(recording, found, assigned, live),
        FindingKind.AUTOCAST_COPIES: _of_autocast(recording, found, assigned, loose),
        FindingKind.EVALUATION_LEFT: _of_evaluations(recording, found, loose & ~copies, at),
        FindingKind.WORKSPACE_LEFT: _workspaces_left(recording, found, assigned, at),
    }
    is_gradient = live & (assigned.category == Category.GRADIENT)
    loose |= is_gradient & ~of_parameters(assigned, lives_of(recording, found))
    others = loose & ~np.isin(np.arange(len(loose)), np.concatenate([*rows.values()]))
    rows |= {
        FindingKind.RESIDENT_DATA: _resident(recording, found, assigned, others),
        FindingKind.STEPS_KEPT: _of_steps(recording, found, others, line, at),
        FindingKind.STEP_BEFORE_KEPT: _of_the_step_before(recording, found, others, at),
    }
    said: list[Finding] = []
    for kind, mine in rows.items():
        size, is_left = found.block_size[mine], kind == FindingKind.WORKSPACE_LEFT
        if size.sum() < max(_LEAST_BYTES, 0 if is_left else _LEAST_SHARE * int(level[at])):
            continue
        ways = [holdings[row] for row in mine.tolist() if row in holdings]
        ((holder, _),) = Counter(map(holder_name, ways)).most_common(1) or [("", 0)]
        is_garbage = any(each.kind == FindingKind.GARBAGE and each.holder == holder for each in said)
        if kind == FindingKind.MODELS_LEFT and is_garbage:
            continue  # they were let go, and wait for the collector
        # The line that made a model says more than that of its optimizer, whose state is larger.
        made = mine[assigned.category[mine] == Category.PARAMETER] if kind in _OF_WEIGHTS else mine
        made = made if len(made) else mine
        frame = heaviest_line(recording.stacks, found.stack_id[made], found.block_size[made])
        of = next((word for begin, word in _KEEPERS.items() if holder.startswith(begin)), "")
        wording = f"{of}{kind}" if kind == FindingKind.EXCEPTION_KEPT else kind
        if recording.source == "simulated" and kind.startswith("weights"):
            wording = f"simulated.{kind}"
        edit = ADVICE[LeakCause.REFERENCE_CYCLE]
        if kind == FindingKind.MODELS_LEFT and keep_self(ways):
            wording, edit = f"cached.{kind}", NO_SELF
        held = f", held by {holder}" if holder else ""
        finding = worded(
            wording, int(size.sum()), frame, held=held, it=holder or "it", holder=holder, edit=edit,
            steps=len(np.unique(steps_of(recording.steps, found.alloc_event[mine]))),
        )  # fmt: skip
        said.append(replace(finding, holder=holder or None))
    return said


def _of_exceptions(
    recording: Recording, found: Allocations, live: Array, holdings: Mapping[int, Holding], at: int
) -> Array:
    """Return the blocks that paths lead to through frames other than the one that caught the exception.

    What an except clause keeps, which has no name, counts where a forward began meanwhile.
    """
    of = {row: [word for word in each.words if word[0] == "traceback"] for row, each in holdings.items()}
    rows = [row for row, words in of.items() if live[row] and words and all(len(word) == 2 for word in words)]
    forwards = recording.phases.rows(np.isin(recording.phases.phase, (Phase.FORWARD, Phase.EVAL)))
    began = int(forwards.start_event[(forwards.depth == 0) & (forwards.start_event <= at)].max(initial=-1))
    is_handled = [holdings[row].words[0][0] == "unnamed" for row in rows]
    last = max(compress(found.alloc_event[rows].tolist(), is_handled), default=-1)
    return np.array(
        [row for row, each in zip(rows, is_handled, strict=True) if not each or last < began], "i8"
    )


def _of_evaluations(recording: Recording, found: Allocations, live: Array, at: int) -> Array:
    """Return the *live* rows that an evaluation made after a step of training, if *at* is in a later one."""
    lives, steps = lives_of(recording, found), recording.steps
    is_of = (lives.phase == Phase.EVAL) & (lives.step < 0) & (found.alloc_event >= steps.end_event[0])
    return np.flatnonzero(live & is_of & (steps_of(steps, np.array([at - 1])) >= 0))


def _of_autocast(recording: Recording, found: Allocations, assigned: Assigned, live: Array) -> Array:
    """Return the *live* blocks of half a parameter's size that its module's forward left for a next step.

    What autocast converts for one forward goes with its graph. One block for each parameter counts.
    """
    lives, owners = lives_of(recording, found), owners_of(recording, found, assigned)
    paths, ends = owners.paths, np.append(recording.steps.end_event, len(recording.trace))
    next_end = ends[np.minimum(np.searchsorted(ends, found.alloc_event, side="right") + 1, len(ends) - 1)]
    left = live & np.isin(lives.phase, (Phase.FORWARD, Phase.EVAL)) & (lives.dies >= next_end)
    left &= owners.known == ModuleEvidence.CALL
    is_one = (assigned.category == Category.PARAMETER) & (assigned.label >= 0)
    wanted: Counter[tuple[str, int]] = Counter()
    for row in np.flatnonzero(is_one & (found.free_event == ALIVE)).tolist():
        name = recording.labels.names[recording.labels.name[assigned.label[row]]]
        wanted[name.rpartition(".")[0], int(found.size[row]) // 2] += 1
    rows = [(paths[owners.module[row]], int(found.size[row]), row) for row in np.flatnonzero(left).tolist()]
    counts = Counter(each[:2] for each in rows)
    mine = [row for *of, row in rows if counts[of[0], of[1]] <= wanted[of[0], of[1]]]
    needed = _LEAST_OF_CAST * sum(size * n for (_, size), n in wanted.items())
    return np.array(mine if found.size[mine].sum() >= max(needed, 1) else [], "i8")


def _resident(recording: Recording, found: Allocations, assigned: Assigned, live: Array) -> Array:
    """Return the *live* rows from before the first step that stay to the end and are of no model, if many.

    One batch for all steps is no data set; the simulated device counts what is in host memory, too.
    """
    stays = (found.free_event == ALIVE) | (found.free_event >= recording.steps.end_event[-1])
    stays &= live & (found.alloc_event < recording.steps.start_event[0])
    is_input = stays & (assigned.category == Category.INPUT)
    rest = stays & (assigned.category == Category.UNKNOWN) & (assigned.reason != Reason.IDENTITY)
    rows = np.flatnonzero(rest | is_input if np.count_nonzero(is_input) >= _LEAST_STEPS else rest)
    trains = (recording.phases.phase == Phase.OPTIMIZER).any() and recording.source != "simulated"
    is_much = found.block_size[rows].sum() >= _LEAST_RESIDENT * timeline(recording).allocated_bytes.max()
    return rows if trains and is_much else rows[:0]


def _of_steps(recording: Recording, found: Allocations, live: Array, line: Array, at: int) -> Array:
    """Return the *live* rows of lines of which several steps before *at* each made some, freed together."""
    starts, now, lives = recording.steps.start_event, _step_of(recording, at), lives_of(recording, found)
    is_freed = lives.dies < recording.steps.end_event[-1]
    rows = np.flatnonzero(live & (lives.step >= 0) & (lives.step < now) & is_freed)
    freed, is_kept = np.searchsorted(starts, lives.dies[rows], side="right"), np.zeros(len(rows), "?")
    for part in (np.flatnonzero(line[rows] == each) for each in np.unique(line[rows])):
        made = np.unique(lives.step[rows[part]])
        is_kept[part] = len(made) >= max(_LEAST_STEPS, (now - made[0]) / 2) and np.ptp(freed[part]) <= 1
    return rows[is_kept]


def _of_the_step_before(recording: Recording, found: Allocations, live: Array, at: int) -> Array:
    """Return the *live* results of the step before that go when this one has made its own."""
    lives, now = lives_of(recording, found), _step_of(recording, at)
    # Where nothing trains, what forwards with gradients keep is no result.
    kinds = (Phase.EVAL, Phase.FORWARD, Phase.BACKWARD)
    of_model = np.isin(lives.phase, kinds if Phase.BACKWARD in recording.phases.phase else kinds[:1])
    is_freed = lives.dies < np.append(recording.steps.start_event, len(recording.trace))[now + 1]
    stack, size, dies = found.stack_id, found.size, lives.dies
    own = np.flatnonzero(of_model & (lives.step == now) & ~is_freed)[::-1]
    made = {(stack[row], size[row]): found.alloc_event[row] for row in own}
    rows = np.flatnonzero(live & of_model & (lives.step == now - 1) & is_freed)
    return rows[np.array([made.get((stack[row], size[row]), dies[row]) < dies[row] for row in rows], "?")]


def _of_inputs(
    recording: Recording, found: Allocations, assigned: Assigned, live: Array, holdings: Mapping[int, Holding]
) -> Array:
    """Return gradients that no module's or optimizer's parameters have, made one after another in many steps.

    Tensors that a program trains by hand get theirs in one step.
    """
    is_own = live & (assigned.category == Category.GRADIENT) & (assigned.label < 0)
    kinds = {
        row: [word[0] for word in each.words if word[0] not in ("view", "end")]
        for row, each in holdings.items()
    }
    rows = [row for row, way in kinds.items() if is_own[row] and way[-1] == "grad" and "item" in way]
    born = np.searchsorted(recording.steps.start_event, found.alloc_event[rows])
    return np.array(rows, "i8") if len(np.unique(born)) >= max(_LEAST_STEPS, len(rows)) else np.zeros(0, "i8")


def _of_activations(recording: Recording, found: Allocations, assigned: Assigned, live: Array) -> Array:
    """Return the *live* gradients of tensors that forwards made: either goes right before the other.

    A tensor lets go of its gradient and its values at once; values that another one shares are not counted.
    """
    lives, frees = lives_of(recording, found), np.flatnonzero(found.free_event >= 0)
    frees = frees[np.argsort(found.free_event[frees], kind="stable")]
    is_own = (assigned.category == Category.GRADIENT) & (assigned.label < 0)
    is_made = np.isin(lives.phase, (Phase.FORWARD, Phase.LOSS))
    first, second = frees[:-1], frees[1:]
    mine: list[int] = []
    for gradient, value in ((first, second), (second, first)):
        is_pair = is_own[gradient] & is_made[value] & (found.size[gradient] == found.size[value])
        is_pair &= (lives.step[gradient] == lives.step[value]) & (lives.step[value] >= 0)
        mine += gradient[is_pair & live[gradient]].tolist()
    return np.unique(np.array(mine, "i8"))


def _copies(recording: Recording, found: Allocations, assigned: Assigned, live: Array, at: int) -> Array:
    """Return which blocks may be of a copy: of no known use, and there for the whole step of the peak."""
    step = _step_of(recording, at)
    start, end = int(recording.steps.start_event[step]), int(recording.steps.end_event[step])
    lasts = (found.alloc_event < start) & ((found.free_event == ALIVE) | (found.free_event >= end))
    is_of_no_use = np.isin(assigned.category, (Category.UNKNOWN, Category.PARAMETER))
    return live & lasts & is_of_no_use & (assigned.reason != Reason.IDENTITY)


def _step_of(recording: Recording, at: int) -> int:
    """Return the row of the step of an instant, or of the last one before it."""
    return max(int(np.searchsorted(recording.steps.start_event, at, side="right")) - 1, 0)


def _of_earlier_trainings(
    recording: Recording, found: Allocations, assigned: Assigned, live: Array, at: int
) -> tuple[Array, Array]:
    """Return what is live of models whose last gradient came before the first of those that train then.

    And of those without any that ran before the first step. A model is what was named at once, and is in use
    if any of its modules runs after that; one of the same sizes as another may be its average, or its target.
    """
    labels, starts = recording.labels, recording.steps.start_event
    of_names = np.flatnonzero(labels.category == Category.PARAMETER)
    model_of: dict[str, int] = {}
    for row in of_names.tolist():
        model_of.setdefault(labels.names[labels.name[row]], int(labels.event[row]))
    of_text = np.array([model_of.get(text.rpartition(" of ")[2], -1) for text in labels.names], "i8")
    rows = np.flatnonzero((assigned.label >= 0) & np.isin(assigned.category, _OF_MODEL))
    models, of = np.unique(of_text[labels.name[assigned.label[rows]]], return_inverse=True)
    is_made = (assigned.category[rows] == Category.GRADIENT) & (found.alloc_event[rows] >= 0)
    step = np.searchsorted(starts, found.alloc_event[rows], side="right") - 1
    first, last = np.full(len(models), len(starts)), np.full(len(models), -1)
    np.minimum.at(first, of[is_made], step[is_made])
    np.maximum.at(last, of[is_made], step[is_made])
    now = _step_of(recording, at)
    begins = int(first[last >= now].min(initial=now))
    is_over = (last < begins) & (models >= 0)
    # Without an optimizer, as where inputs are attributed, no training is over.
    if not is_over.any() or not (recording.phases.phase == Phase.OPTIMIZER).any():
        return rows[:0], rows[:0]
    owners = owners_of(recording, found, assigned)

    def running(runs: Array) -> Array:
        called = owners.module[runs & (owners.known == ModuleEvidence.CALL)]
        paths = {owners.paths[module] for module in np.unique(called).tolist()}
        names = [name for name in model_of if (name.rpartition(".")[0] or ROOT_MODULE) in paths]
        return np.isin(models, [model_of[name] for name in names])

    is_left = is_over & ~running(found.alloc_event >= starts[begins])
    parts = [
        rows[(of == model) & (assigned.category[rows] == Category.PARAMETER)] for model in range(len(models))
    ]
    sizes = [Counter(found.size[part].tolist()) for part in parts]
    is_idle = running(found.alloc_event < starts[0]) & np.array([sizes.count(each) == 1 for each in sizes])
    is_idle &= at >= starts[0]
    idle, over = (rows[(is_left & mine)[of] & live[rows]] for mine in ((last < 0) & is_idle, last >= 0))
    return over, idle


def _of_no_module(recording: Recording, found: Allocations, assigned: Assigned, live: Array) -> Array:
    """Return the *live* parameters that optimizers alone know, of no size of which there is any gradient."""
    is_nameless = (assigned.label >= 0) & (names_of(recording.labels, assigned.label) == "")
    is_one = live & is_nameless & (assigned.category == Category.PARAMETER)
    return np.flatnonzero(is_one & ~np.isin(found.size, found.size[assigned.category == Category.GRADIENT]))


def _like_weights(models: Sequence[Counter[int]], found: Allocations, mine: Array) -> Array:
    """Return the rows among *mine* that have the sizes of a model's parameters, if they are a copy of it."""
    for wanted in models:
        rows = np.flatnonzero(mine & np.isin(found.size, list(wanted)))
        both = Counter(found.size[rows].tolist()) & wanted
        parts = ((both.total(), wanted.total()), (_bytes(both), _bytes(wanted)))
        if all(part and part >= _LEAST_OF_WEIGHTS * whole for part, whole in parts):
            return rows
    return np.zeros(0, "i8")


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * n for size, n in sizes.items())


def _models(recording: Recording, found: Allocations, assigned: Assigned) -> list[Counter[int]]:
    """Return the sizes of all parameters, then of those that each of several lines made, the most first.

    A model and its teacher are made by different lines: the outermost frames in which their stacks differ.
    """
    rows = np.flatnonzero((assigned.category == Category.PARAMETER) & (assigned.reason == Reason.IDENTITY))
    code = fold(recording.stacks)
    calls = [code.stacks.frames(code.of[stack])[::-1] for stack in found.stack_id[rows].tolist()]
    depth = next((at for at, frames in enumerate(zip(*calls, strict=False)) if len({*frames}) > 1), 0)
    of_line: dict[Any, Counter[int]] = defaultdict(Counter)
    for call, size in zip(calls, found.size[rows].tolist(), strict=True):
        of_line[call[depth : depth + 1]][size] += 1
    whole = sum(of_line.values(), Counter[int]())
    return [whole, *sorted(of_line.values(), key=_bytes, reverse=True)]


def _workspaces_left(recording: Recording, found: Allocations, assigned: Assigned, at: int) -> Array:
    """Return the workspaces of libraries at the end of a program that has let go of all else."""
    is_left = found.allocated_at(len(recording.trace)) & (recording.outcome is Outcome.FINISHED)
    is_workspace = assigned.category == Category.WORKSPACE
    left, most = (found.block_size[rows & ~is_workspace].sum() for rows in (is_left, found.allocated_at(at)))
    return np.flatnonzero(is_left & is_workspace & (left <= _MOST_LEFT * most))


def _garbage(
    recording: Recording, found: Allocations, live: Array, holdings: Mapping[int, Holding], line: Array
) -> Array:
    """Return the blocks of earlier steps of lines most of whose such blocks only cycles reached at a search.

    A tensor that no object of the program leads to may be in use in a library.
    """
    cycles = [
        row
        for row, holding in holdings.items()
        if holding.words[0][0] == "unreachable" and holding.words[0][1] not in ("Tensor", "Parameter")
    ]
    if not cycles:
        return np.zeros(0, "i8")
    holders, starts = recording.holders, recording.steps.start_event
    first = holders.first_rows()
    asked = holders.event[first][last_known(found, holders.address[first], holders.event[first])]
    born = np.searchsorted(starts, found.alloc_event, side="right")
    # What a name reaches in the step that made it becomes garbage when that step is over.
    named = [
        row
        for row, holding in holdings.items()
        if holding.words[0][0] != "unreachable" and np.searchsorted(starts, asked[row]) > born[row]
    ]
    n_lines = int(line.max()) + 1
    n_cycles, n_named = (
        np.bincount(line[np.array(rows, "i8")], minlength=n_lines) for rows in (cycles, named)
    )
    lines = np.flatnonzero(n_cycles > 2 * n_named)
    mine = live & (found.alloc_event >= 0) & (born < born[live].max()) & np.isin(line, lines)
    mine[np.array(named, "i8")] = False
    return np.flatnonzero(mine)


ANALYSIS = asking(
    "Which blocks does nothing use at the peak or the end, and what holds them?", held_once, list
)
