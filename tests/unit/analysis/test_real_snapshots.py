"""On captures of real GPUs and of the genuine allocators: the analyses agree with torch's own snapshot."""

from functools import cache
from pathlib import Path

import captures
import numpy as np
import pytest

from vramscope.analysis.by_stack import by_stack
from vramscope.analysis.categories import categories
from vramscope.analysis.identity import identity
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.peak import peak
from vramscope.analysis.timeline import Totals, timeline
from vramscope.analysis.tree import prune, tree
from vramscope.formats.torch_snapshot import read
from vramscope.model.recording import Recording
from vramscope.model.snapshot import BlockState

# One file is scrambled: addresses at random, blocks that match nothing. It must open, and is no truth.
SCRAMBLED = "snap_anonymised_fixture"
FILES = [*captures.snapshots(), *captures.genuine()]
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


@cache
def recordings(path: Path) -> tuple[tuple[Recording, Totals], ...]:
    return tuple((recording, timeline(recording)) for recording in read(path).recordings)


@each_file
def test_the_end_is_that_of_the_snapshot(path):
    if SCRAMBLED in path.name:
        pytest.skip("scrambled")
    for recording, totals in recordings(path):
        blocks = recording.final.blocks
        active = blocks.state != BlockState.INACTIVE
        assert totals.requested_bytes[-1] == blocks.requested_size[active].sum()
        assert totals.allocated_bytes[-1] == blocks.size[blocks.state == BlockState.ALLOCATED].sum()
        assert totals.active_bytes[-1] == blocks.size[active].sum()
        assert totals.reserved_bytes[-1] == recording.final.segments.size.sum()


@each_file
def test_nothing_is_ever_negative(path):
    for _, totals in recordings(path):
        assert min(int(column.min()) for _, column in totals.columns()) >= 0


@each_file
def test_no_quantity_exceeds_the_one_that_contains_it(path):
    if SCRAMBLED in path.name:
        pytest.skip("scrambled")
    for _, totals in recordings(path):
        assert (totals.requested_bytes <= totals.active_bytes).all()
        assert (totals.allocated_bytes <= totals.active_bytes).all()
        assert (totals.active_bytes <= totals.reserved_bytes).all()


@each_file
def test_what_is_live_at_the_peak_is_what_is_allocated(path):
    for recording, totals in recordings(path):
        found, at = lifetimes(recording), peak(recording).allocated.instant
        assert found.block_size[found.largest_at(at)].sum() == totals.allocated_bytes[at]
        assert by_stack(recording).total_bytes == totals.allocated_bytes[at]
        assert categories(recording).n_bytes.sum() == totals.allocated_bytes[at]


@each_file
def test_lives_sum_up_to_the_totals_at_random_instants(path):
    for recording, totals in recordings(path):
        found = lifetimes(recording)
        for at in np.random.default_rng(1).integers(0, len(totals), 20).tolist():
            assert found.block_size[found.allocated_at(at)].sum() == totals.allocated_bytes[at]
            assert found.block_size[found.rows_active_at(at)].sum() == totals.active_bytes[at]
            assert found.size[found.rows_active_at(at)].sum() == totals.requested_bytes[at]


@each_file
def test_the_identity_holds_at_random_instants(path):
    if SCRAMBLED in path.name:
        pytest.skip("scrambled")
    for recording, totals in recordings(path):
        for at in {0, len(totals) - 1, *np.random.default_rng(2).integers(0, len(totals), 3).tolist()}:
            found = identity(recording, at)
            assert min(found.parts.values()) >= 0
            assert found.reserved_bytes == totals.reserved_bytes[at]
            assert found.requested_bytes + found.rounding_bytes == totals.allocated_bytes[at]
            assert found.pending_bytes == totals.active_bytes[at] - totals.allocated_bytes[at]


@each_file
def test_the_tree_holds_the_peak(path):
    for recording, totals in recordings(path):
        for folded in (True, False):
            whole = tree(recording, folded=folded)
            few = prune(whole)
            assert whole.total_bytes[0] == few.total_bytes[0] == totals.allocated_bytes.max()
            assert few.self_bytes.sum() == whole.self_bytes.sum() == totals.allocated_bytes.max()
            assert len(few) <= 250
