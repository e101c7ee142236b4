"""The snapshots that benchmarks are run on hold what a genuine one would."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from vramscope.allocator.replay import state_at
from vramscope.allocator.settings import Settings
from vramscope.formats.torch_snapshot import run_of
from vramscope.model.trace import Action

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "generate.py"


@pytest.fixture(scope="module")
def generate(module_at):
    return module_at(GENERATOR)


def test_the_final_blocks_agree_with_the_events_on_every_device(generate):
    run = run_of(generate.snapshot(20_000, n_devices=2, leak_bytes=5 << 20), Path("made.pickle"))

    assert [recording.device.index for recording in run.recordings] == [0, 1]
    for recording in run.recordings:
        end = state_at(recording.trace, recording.initial, len(recording.trace), Settings())
        for name, column in recording.final.blocks.columns():
            if name != "stack_id":
                assert np.array_equal(getattr(end.blocks, name), column), name
        assert len(recording.trace) >= 10_000
        assert len(recording.steps) > 2
        assert recording.notes == ()


def test_a_leak_is_kept_and_nothing_else_grows(generate):
    leaking = run_of(generate.snapshot(20_000, leak_bytes=5 << 20), Path("made.pickle")).recordings[0]
    trace = leaking.trace
    n_kept = np.count_nonzero((trace.action == Action.ALLOC) & (trace.size == 5 << 20))

    assert n_kept > 3
    assert not np.any((trace.action == Action.FREE_REQUESTED) & (trace.size == 5 << 20))


def test_frames_are_shared_as_torch_shares_them(generate):
    made = pickle.loads(pickle.dumps(generate.snapshot(5_000), protocol=4))
    (events,) = made["device_traces"]
    lists = {id(event["frames"]) for event in events}
    places = {id(frame) for event in events for frame in event["frames"]}

    assert 0.5 < len(lists) / len(events) < 0.8
    assert len(places) < 500


def test_the_same_arguments_give_the_same_file(generate, tmp_path):
    for name in ("one", "two"):
        generate.main(["--events", "2000", str(tmp_path / name)], say=lambda _: None)
    generate.main(["--events", "2000", "--seed", "1", str(tmp_path / "other")], say=lambda _: None)

    one, two, other = ((tmp_path / name).read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other
