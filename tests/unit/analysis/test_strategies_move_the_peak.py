"""Whatever a recording holds: advice moves its peak, by the bytes that counting by hand finds."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.analysis.strategies import WORTH_IT, strategies
from vramscope.model.marks import Category, Labels, Phase, Phases
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
CATEGORIES = (
    Category.PARAMETER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.ACTIVATION,
    Category.TEMPORARY,
)
N_RANKS = 4
BLOCK = 64 << 10
"""Bytes: large enough for each state to be kept in 8 bits."""

# Of each strategy that changes sizes alone: by category what is left of it; of temporaries, the optimizer's.
LEFT = {
    "fused optimizer": {Category.TEMPORARY: 0.0},
    "optimizer state in 8 bits": {Category.OPTIMIZER_STATE: 0.25 * (1 + 4 / 256), Category.TEMPORARY: 0.0},
    "optimizer on the CPU": {Category.OPTIMIZER_STATE: 0.0, Category.TEMPORARY: 0.0},
    # Of stage 1 a rank has whole parameters: see left_of.
    "ZeRO-1": dict.fromkeys((Category.OPTIMIZER_STATE, Category.TEMPORARY), 1 / N_RANKS),
    "ZeRO-2": dict.fromkeys((Category.OPTIMIZER_STATE, Category.TEMPORARY, Category.GRADIENT), 1 / N_RANKS),
}

STATE = (0, 12, 1, Category.OPTIMIZER_STATE)
# A block: when it comes and goes (in steps of the clock), how large it is, what for.
BLOCKS = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 12), st.integers(1, 64), st.sampled_from(CATEGORIES)),
    max_size=12,
).map(lambda blocks: [STATE, *blocks])


def recording_of(blocks):
    """A step of three phases, four ticks of the clock each. An optimizer's temporaries live within it."""
    moves = []
    for number, (start, length, size, category) in enumerate(blocks, start=1):
        end = start + length
        moves.append((start, 0, Action.ALLOC, number, size * BLOCK, category))
        if end < 12:
            moves.append((end, 1, Action.FREE_REQUESTED, number, size * BLOCK, None))
    moves.sort(key=lambda move: move[:2])
    ticks = np.array([move[0] for move in moves])
    _, _, action, number, size, category = zip(*moves, strict=True)
    address = [each << 32 for each in number]
    known = [at for at, what in enumerate(category) if what is not None]
    edges = [int(np.searchsorted(ticks, tick)) for tick in (0, 4, 8)] + [len(moves)]
    return Recording(
        trace=Trace.of(action=action, address=address, size=size, block_size=size),
        labels=Labels.of(
            event=[at + 1 for at in known],
            address=[address[at] for at in known],
            category=[category[at] for at in known],
        ),
        phases=Phases.of(phase=PHASES, start_event=edges[:-1], end_event=edges[1:]),
    )


def left_of(name, recording):
    """The largest parameter of the peak that is left goes to the emptiest rank, in stage 1."""
    _, parameters = at_peak(recording, {})
    if name != "ZeRO-1" or not parameters:
        return LEFT[name]
    ranks = [0] * N_RANKS
    for n_bytes in sorted(parameters, reverse=True):
        ranks[ranks.index(min(ranks))] += n_bytes
    return dict.fromkeys(LEFT[name], max(ranks) / sum(ranks))


def counted(recording, left):
    """The peak with so much left of each category."""
    return at_peak(recording, left)[0]


def at_peak(recording, left):
    """The peak, one event after the other, and the sizes of the parameters there."""
    sizes, level, peak, parameters, held = {}, 0.0, 0.0, {}, []
    trace, phases = recording.trace, recording.phases
    category = dict(zip(recording.labels.event.tolist(), recording.labels.category.tolist(), strict=True))
    for at, (action, address, size) in enumerate(
        zip(trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), strict=True)
    ):
        if action == Action.ALLOC:
            what = Category(category[at + 1])
            is_optimizers = phases.start_event[2] <= at < phases.end_event[2]
            share = left.get(what, 1.0) if what != Category.TEMPORARY or is_optimizers else 1.0
            sizes[address] = share * size
            level += sizes[address]
            if what == Category.PARAMETER:
                parameters[address] = size
        else:
            level -= sizes[address]
            parameters.pop(address, None)
        if level > peak:
            peak, held = level, [*parameters.values()]
    return peak, held


@settings(max_examples=60, deadline=None)
@given(blocks=BLOCKS)
def test_advice_moves_the_peak_by_what_counting_finds(blocks):
    recording = recording_of(blocks)

    found = strategies(recording, N_RANKS)

    assert found.peak_bytes == counted(recording, {})
    assert all(each.saved_bytes >= WORTH_IT * found.peak_bytes for each in found.advised)
    assert all(each.peak_bytes == found.peak_bytes - each.saved_bytes for each in found.advised)
    assert all(each.peak_bytes == max(each.by_phase.values(), default=0) for each in found.advised)
    said = {each.name: each.peak_bytes for each in found.advised}
    least = WORTH_IT * found.peak_bytes
    for name in LEFT:
        peak = round(counted(recording, left_of(name, recording)))
        promised = [n_bytes for full, n_bytes in said.items() if full.startswith(name)]
        # The second stage is reported where it saves more than the first.
        before = found.peak_bytes
        if name == "ZeRO-2":
            before = round(counted(recording, left_of("ZeRO-1", recording)))
        is_better = found.peak_bytes - before < least or before - peak >= least
        assert promised == ([peak] if found.peak_bytes - peak >= least and is_better else [])


@settings(max_examples=30, deadline=None)
@given(blocks=BLOCKS)
def test_every_strategy_is_reported_once_or_not_at_all(blocks):
    found = strategies(recording_of(blocks), N_RANKS)

    names = Counter([each.name for each in found.advised] + list(found.without_effect))
    assert set(names.values()) <= {1}
