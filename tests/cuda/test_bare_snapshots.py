"""What the stacks of a bare snapshot say of a block is what capture knew of the same block."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from standin_fixtures import HAS_WORKSPACE_PER_PRODUCT

from vramscope.analysis.categories import categories
from vramscope.loading import load
from vramscope.model.marks import Category

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-bare-snapshots")]

SCRIPT = Path(__file__).parent / "scripts" / "bare_snapshots.py"
PROGRAMS = ("checkpointed", "reentrant", "half_with_evaluation", "closure")


@pytest.fixture(scope="module")
def folder(python, tmp_path_factory):
    found = tmp_path_factory.mktemp("bare")
    done = python(SCRIPT, found, cwd=found)
    assert done.returncode == 0, done.stderr
    for status in found.glob("*.status"):
        assert status.read_text() == "0", status.with_suffix(".stderr").read_text()
    return found


def pairs_of(folder, name, context):
    """Bytes by the category that capture knew and the one that the snapshot's stacks show."""
    both = []
    for file in (f"{name}-recorded", f"{name}-{context}.pickle"):
        found = categories(load(folder / file).recordings[0])
        born = np.flatnonzero(found.allocations.alloc_event >= 0)
        both.append((found.assigned.category[born], found.allocations.size[born]))
    (known, known_size), (by_stack, by_stack_size) = both
    assert known_size.tolist() == by_stack_size.tolist()
    pairs = Counter()
    for mine, theirs, size in zip(known.tolist(), by_stack.tolist(), by_stack_size.tolist(), strict=True):
        pairs[Category(mine).name, Category(theirs).name] += size
    return pairs


@pytest.mark.parametrize("context", ["all", "alloc"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_stacks_never_contradict_what_capture_knew(folder, name, context):
    pairs = pairs_of(folder, name, context)

    wrong = {pair: size for pair, size in pairs.items() if "UNKNOWN" not in pair and len(set(pair)) > 1}
    if (
        HAS_WORKSPACE_PER_PRODUCT
    ):  # a file does not say which torch wrote it; until 2.14 none is freed at once
        wrong.pop(("WORKSPACE", "TEMPORARY"), None)
    assert wrong == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_stacks_show_nearly_all_that_training_makes(folder, name):
    pairs = pairs_of(folder, name, "all")

    for category in ("ACTIVATION", "GRADIENT", "OPTIMIZER_STATE"):
        equal_bytes = pairs[category, category]
        assert equal_bytes >= 0.9 * sum(size for (known, _), size in pairs.items() if known == category)
