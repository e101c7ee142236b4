"""A history too small for what happens at once: what is lost is found, counted and reported, and nothing
after it is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from layouts import expected, layout
from moments import COUNTED, QUANTITIES

from vramscope.allocator.state_index import StateIndex
from vramscope.loading import load

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-deaths")]

SCRIPT = Path(__file__).parent / "scripts" / "small_ring.py"


@pytest.fixture(scope="module")
def lost(python, tmp_path_factory):
    """What torch reported at every mark, and the recording."""
    folder = tmp_path_factory.mktemp("ring")
    done = python(SCRIPT, folder, cwd=folder)
    assert done.returncode == 0, done.stderr
    said = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    (recording,) = load(folder / "run").recordings
    return said, recording


def at(recording, name):
    """The instant of the mark."""
    marks = recording.marks
    (row,) = np.flatnonzero(marks.name == marks.names.index(name))
    return int(marks.event[row])


NAMES = ("begin", "before", "after the first", "after the second", "end")


def test_what_was_lost_is_reported_and_counted(lost):
    said, recording = lost
    gaps = [note.value for note in recording.notes if note.code == "gap"]
    made = sum(said["end"]["counts"]) - sum(said["begin"]["counts"])
    seen = int(np.isin(recording.trace.action, COUNTED).sum())

    # What is shown in the place of what was lost (at least what stayed) is in seen too.
    assert made - seen <= sum(gaps) <= made - seen + 60
    # How much that is depends on how often our thread could read meanwhile.
    assert sum(gaps) > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_four_quantities_are_right_before_and_after(lost, name):
    said, recording = lost
    totals = recording.timeline()
    instant = at(recording, name)

    assert [int(getattr(totals, f"{quantity}_bytes")[instant]) for quantity in QUANTITIES] == said[name][
        "bytes"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_segments_and_blocks_are_right_before_and_after(lost, name):
    said, recording = lost
    index = StateIndex(recording.trace, recording.initial)

    assert layout(index.at(at(recording, name)), recording.pools) == expected(said[name])


def test_the_end_is_right_and_every_step_after_the_loss_is_there(lost):
    said, recording = lost
    totals = recording.timeline()

    assert [int(getattr(totals, f"{quantity}_bytes")[-1]) for quantity in QUANTITIES] == said["end"]["bytes"]
    assert len(recording.steps) == 6 * 8
