"""What-ifs of a recorded program, each run dry: ``vramscope fit RUN --rerun``."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from vramscope.analysis.fit.answer import DryPeak, Rerun, Reruns, Target
from vramscope.errors import UsageError, VramscopeError
from vramscope.model.cards import words
from vramscope.model.prediction import Prediction
from vramscope.model.recording import Recording
from vramscope.package_data import rows
from vramscope.prediction import script
from vramscope.prediction.answering import Outcome, discard
from vramscope.prediction.cards import HARDWARE
from vramscope.prediction.children import import_torch, run_all_dry
from vramscope.prediction.sizes import known_sizes
from vramscope.prediction.trial import DEFAULT_CARD, UNLIMITED_BYTES, DryChange, Trial, room_of

Note: TypeAlias = Callable[[Reruns, str], None]

_CHECKPOINTS = "activation checkpointing"


@dataclass(frozen=True, slots=True)
class _WhatIf:
    name: str
    how: str
    trial: Trial


def rerun(
    recording: Recording, command: str | None, target: Target | None, n_cards: int, note: Note
) -> Reruns:
    """Run the recorded program dry, as it is and with every change that can be made from outside.

    *command* is None for the recorded one, *target* for the device of the card; models are sharded over
    *n_cards* of it. *note* receives what is known after each run, and how far it is: a caller that is stopped
    keeps it. The result has a ``problem`` if the program cannot be run dry.
    """
    import_torch()
    text = command or recording.process.command
    card = card_of(recording.device.name) or DEFAULT_CARD
    room = room_of(card, target.total_bytes if target is not None else None)
    found = Reruns(text, room.name, room.total_bytes)
    try:
        trial = _trial(text, room.name, room.total_bytes)
        what_ifs = list(_what_ifs(trial, n_cards))
        found = replace(found, n_wanted=len(what_ifs))
        plain = _alone(replace(trial, capacity=UNLIMITED_BYTES))
    except VramscopeError as error:
        return replace(found, problem=str(error))
    found = replace(found, plain=_peak(plain, room.room_bytes))
    note(found, "")
    found = _run(found, what_ifs, room.room_bytes, note)
    return _fewest_blocks(found, trial, room.room_bytes, note)


_NOT_IN_DEVICES = frozenset({"8", "12", "16"})
"""Sizes by which cards are sold, but which their drivers leave out of the name."""


def card_of(device: str) -> str | None:
    """Return the known card that a device's name means; None for any other."""
    asked = words(device)
    named = [(each, words(each.name) - _NOT_IN_DEVICES) for each in HARDWARE]
    known = [(len(name), each.name) for each, name in named if name <= asked]
    return max(known, key=lambda one: one[0])[1] if known else None


def _trial(command: str, card: str, capacity_bytes: int) -> Trial:
    given = shlex.split(command)
    if not given:
        raise UsageError("the recording does not know its command; give it with --rerun=COMMAND")
    if given[0].startswith("python"):
        del given[0]
    if not Path(given[0]).is_file():
        raise UsageError(
            f"{given[0]} is not here: start vramscope where the program ran, or give --rerun=COMMAND"
        )
    program, arguments = script.script(given[0]), tuple(given[1:])
    return Trial(
        card, capacity_bytes, script=program, name=given[0], arguments=arguments, measures_need=False
    )


def _what_ifs(trial: Trial, n_cards: int) -> Iterator[_WhatIf]:
    free = replace(trial, capacity=UNLIMITED_BYTES)
    for row in rows(__file__, "what_ifs.tsv"):
        name, how, change = (text.replace("#", str(n_cards)) for text in row)
        yield _WhatIf(name, how, replace(free, change=DryChange(**json.loads(change))))
    batch, sequence = known_sizes(trial.arguments)
    if batch is not None and batch.value % 2 == 0:
        half, twice = batch.value // 2, DryChange(accumulated=2)
        how = f"{batch.name} {half}, and an optimizer step after every 2 of them"
        arguments = tuple(batch.arguments(half))
        yield _WhatIf("2 micro-batches", how, replace(free, arguments=arguments, change=twice))
    for size, word in ((batch, "batch"), (sequence, "sequence")):
        if size is not None:
            arguments = tuple(size.arguments(2 * size.value))
            how = f"{size.name} {2 * size.value}"
            yield _WhatIf(f"{word} doubled", how, replace(free, arguments=arguments, change=DryChange()))


def _run(found: Reruns, what_ifs: Sequence[_WhatIf], room_bytes: int, note: Note) -> Reruns:
    rows: dict[int, Rerun] = {}
    for number, answer in _outcomes([each.trial for each in what_ifs]):
        what_if = what_ifs[number]
        rows[number] = _row(what_if.name, what_if.how, answer, room_bytes)
        found = replace(found, rows=tuple(rows[at] for at in sorted(rows)))
        note(found, f"run dry: {len(rows)} of {len(what_ifs)} what-ifs")
    return _decided(found, [what_ifs[at] for at in sorted(rows)], note)


def _decided(found: Reruns, what_ifs: Sequence[_WhatIf], note: Note) -> Reruns:
    """Run again, on the device itself, what may fit after the allocator has released its cache."""
    rows = list(found.rows)
    close = [at for at, row in enumerate(rows) if row.peak is not None and row.peak.is_close]
    trials = [replace(what_ifs[at].trial, capacity=found.capacity_bytes) for at in close]
    for number, answer in _outcomes(trials):
        row = rows[close[number]]
        if row.peak is not None and not isinstance(answer, VramscopeError):
            rows[close[number]] = replace(row, peak=replace(row.peak, fits=answer.fits))
            found = replace(found, rows=tuple(rows))
            note(found, "")
    return found


def _outcomes(trials: Sequence[Trial]) -> Iterator[tuple[int, Outcome]]:
    """Yield what came of each trial; of its recording only the figures are kept."""
    for number, outcome in run_all_dry(trials):
        discard(outcome)
        yield number, outcome


def _alone(trial: Trial) -> Prediction:
    ((_, outcome),) = _outcomes([trial])
    if isinstance(outcome, VramscopeError):
        raise outcome
    return outcome


def _row(name: str, how: str, answer: Outcome, room_bytes: int) -> Rerun:
    if isinstance(answer, VramscopeError):
        return Rerun(name, how, problem=str(answer))
    return Rerun(name, how, None if answer.unchanged else _peak(answer, room_bytes), answer.unchanged)


def _peak(answer: Prediction, room_bytes: int) -> DryPeak:
    """Return the figures of a run without a limit, and whether they fit where they do so without pressure."""
    need = answer.need
    bounds = need.allocated_bytes, need.most_allocated_bytes, need.reserved_bytes
    reached = answer.peak_allocated_bytes, answer.peak_reserved_bytes
    reason = answer.reasons[0] if answer.reasons else ""
    return DryPeak(*bounds, *reached, need.fits(room_bytes), answer.certainty, reason)


def _fewest_blocks(found: Reruns, trial: Trial, room_bytes: int, note: Note) -> Reruns:
    """Add the fewest checkpointed blocks that fit the device, where none does not and all do."""
    plain = found.plain
    whole = next((row for row in found.rows if row.name == _CHECKPOINTS), None)
    if plain is None or plain.fits is not False or whole is None or whole.peak is None or not whole.peak.fits:
        return found
    n_blocks = _alone(replace(trial, capacity=UNLIMITED_BYTES, change=DryChange(checkpointed=-1))).n_blocks
    low, high, best = 0, n_blocks, whole.peak
    while high - low > 1:
        middle = (low + high) // 2
        answer = _alone(replace(trial, change=DryChange(checkpointed=middle)))
        note(found, f"run dry: {middle} of {n_blocks} blocks checkpointed")
        if answer.fits:
            high, best = middle, _peak(answer, room_bytes)
        else:
            low = middle
    how = f"checkpoint the first {high} of {n_blocks} blocks: the fewest that fit, so the least recompute"
    found = replace(found, rows=(*found.rows, Rerun("checkpointing of some blocks", how, best)))
    note(found, "")
    return found
