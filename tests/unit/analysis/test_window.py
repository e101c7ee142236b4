"""Questions put to a window are answered as by the whole recording between its ends."""

from dataclasses import replace

import captures
import numpy as np
import pytest

from vramscope.allocator import state_index as module
from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.allocator.state_index import checkpoints
from vramscope.errors import UsageError
from vramscope.formats.torch_snapshot import read
from vramscope.model.marks import Labels, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

FILES = [captures.genuine_file(name) for name in ("streams", "expand_press", "empty", "late")]


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def recording(request: pytest.FixtureRequest) -> Recording:
    """A recording of a genuine allocator, with a checkpoint every 1,000 events."""
    found = read(request.param).recordings[0]
    return replace(found, checkpoints=checkpoints(found, distance=1000))


def places(n_events: int) -> list[tuple[int, int]]:
    source = np.random.default_rng(0)
    pairs = np.sort(source.integers(0, n_events + 1, (6, 2)), axis=1).tolist()
    return [(0, n_events), (1000, 1000), (n_events, n_events), (999, 2001), *map(tuple, pairs)]


def test_levels_within_are_those_of_the_whole(recording: Recording) -> None:
    whole = recording.timeline()

    for start, end in places(len(recording.trace)):
        levels = recording.window(start_event=start, end_event=end).timeline()
        for name in ("requested", "allocated", "active", "reserved"):
            assert np.array_equal(
                getattr(levels, f"{name}_bytes"), getattr(whole, f"{name}_bytes")[start : end + 1]
            ), (start, name)


def test_it_begins_and_ends_with_the_exact_state(recording: Recording) -> None:
    for start, end in places(len(recording.trace)):
        part = recording.window(start_event=start, end_event=end)
        for here, k in ((0, start), (end - start, end)):
            truth = state_at(recording.trace, recording.initial, k, Settings())
            found = state_at(part.trace, part.initial, here, Settings())
            for table in ("segments", "blocks"):
                for name, column in getattr(truth, table).columns():
                    if (table, name) == ("segments", "stack_id"):
                        continue  # of a run that was mapped in parts, any of these may stand for all
                    assert np.array_equal(getattr(getattr(found, table), name), column), (start, k, name)


def test_without_checkpoints_it_is_the_same(recording: Recording) -> None:
    bare = replace(recording, checkpoints=())

    for start, end in places(len(recording.trace)):
        one = recording.window(start_event=start, end_event=end)
        other = bare.window(start_event=start, end_event=end)
        for name, column in one.initial.blocks.columns():
            assert np.array_equal(getattr(other.initial.blocks, name), column), name


def test_a_window_of_a_window_is_a_window(recording: Recording) -> None:
    inner = recording.window(start_event=1500, end_event=3500).window(start_event=700, end_event=1200)
    direct = recording.window(start_event=2200, end_event=2700)

    assert np.array_equal(inner.timeline().reserved_bytes, direct.timeline().reserved_bytes)
    assert np.array_equal(inner.initial.blocks.address, direct.initial.blocks.address)


def test_nothing_before_the_checkpoint_is_looked_at(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spied(trace: Trace, *rest: object) -> object:
        seen.append(len(trace))
        return state_at(trace, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "state_at", spied)

    recording.window(start_event=3700, end_event=3800)

    assert seen == [700]


def made() -> Recording:
    """512 lives from the first to the fifth event, then another block at its address."""
    actions = [Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED] + [Action.ALLOC] * 2
    trace = Trace.of(
        action=actions, address=[512, 1024, 512, 512, 512, 4096], size=[10] * 6, block_size=[512] * 6
    )
    return Recording(
        trace=trace,
        steps=Steps.of(index=[0, 1, 2], start_event=[0, 2, 4], end_event=[2, 4, 6]),
        phases=Phases.of(phase=[1, 2, 1], step=[0, 1, 2], start_event=[0, 2, 5], end_event=[2, 4, 6]),
        labels=Labels.of(event=[1, 2, 6], address=[512, 1024, 4096], category=[1, 2, 3]),
    )


def test_steps_and_phases_are_cut_at_its_ends() -> None:
    part = made().window(start_event=3, end_event=6)

    assert part.steps.index.tolist() == [1, 2]
    assert part.steps.start_event.tolist() == [0, 1]
    assert part.steps.end_event.tolist() == [1, 3]
    assert part.phases.step.tolist() == [0, 1]
    assert part.phases.start_event.tolist() == [0, 2]


def test_labels_stay_with_their_blocks() -> None:
    part = made().window(start_event=5, end_event=6)

    assert part.labels.address.tolist() == [1024, 4096]
    assert part.labels.event.tolist() == [0, 1]


@pytest.mark.parametrize("interval", [(-1, 3), (4, 3), (0, 7)])
def test_an_interval_that_is_not_there_is_refused(interval: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="no events"):
        made().window(start_event=interval[0], end_event=interval[1])


def three_steps() -> Recording:
    """Twelve events a microsecond apart; steps of four events each, numbered from 5."""
    trace = Trace.of(
        action=[Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.ALLOC] * 3,
        address=[0x1000 * (1 + row) for row in range(12)],
        block_size=[512] * 12,
        time_ns=[1_000 * row for row in range(1, 13)],
    )
    bounds = [0, 4, 8, 12]
    steps = Steps.of(
        index=[5, 6, 7],
        start_event=bounds[:-1],
        end_event=bounds[1:],
        start_ns=[1_000 * (1 + bound) for bound in bounds[:-1]],
        end_ns=[1_000 * (1 + bound) for bound in bounds[1:]],
    )
    return Recording(trace=trace, steps=steps)


def test_a_window_of_steps_has_the_events_of_these_steps() -> None:
    part = three_steps().window(steps=(6, 8))

    assert part.trace.time_ns.tolist() == [1_000 * row for row in range(5, 13)]
    assert part.steps.index.tolist() == [6, 7]


def test_a_window_of_times_has_the_events_from_the_first_moment_up_to_but_without_the_last() -> None:
    part = three_steps().window(time_ns=(3_000, 6_000))

    assert part.trace.time_ns.tolist() == [3_000, 4_000, 5_000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": (1, 3)},
        {"time_ns": (9, 3)},
        {"steps": (5, 6), "time_ns": (0, 1)},
        {"start_event": 1, "steps": (5, 6)},
    ],
)
def test_a_window_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(UsageError):
        three_steps().window(**wrong)


def test_times_of_a_recording_without_a_clock_are_refused() -> None:
    recording = replace(three_steps(), trace=replace(three_steps().trace, time_ns=np.zeros(12, "i8")))

    with pytest.raises(UsageError, match="no clock"):
        recording.window(time_ns=(0, 5))
