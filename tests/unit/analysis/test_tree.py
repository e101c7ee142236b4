"""The flame tree holds every live byte exactly once, pruned or not, folded or not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.tree import FRAMEWORK, NO_STACK, OTHER, ROOT, Tree, prune, tree, tree_of
from vramscope.model.recording import Recording
from vramscope.model.stacks import Frame, StackBuilder, stacks_of
from vramscope.model.trace import Action

MAIN, STEP, LOSS = ("main", "train.py", 1), ("step", "train.py", 5), ("loss", "train.py", 9)
LINEAR = ("linear", "/x/site-packages/torch/nn/functional.py", 7)
NAMES = st.sampled_from(["a", "b", "c", "d"])
STACKS = st.lists(st.tuples(st.lists(NAMES, max_size=6), st.integers(0, 10**6)), max_size=40)


def rows(found: Tree) -> list[tuple[str, int, int, int]]:
    """Function, own bytes, total bytes, blocks, from the root down."""
    columns = zip(found.self_bytes.tolist(), found.total_bytes.tolist(), found.count.tolist(), strict=True)
    return [(found.frame(row).function, *values) for row, values in enumerate(columns)]


def grown(stacks: list[tuple[list[str], int]]) -> Tree:
    builder = StackBuilder()
    ids = [builder.add([(name, "user.py", 1) for name in names]) for names, _ in stacks]
    live = StackBytes.of(stack_id=ids, bytes=[size for _, size in stacks], count=[1] * len(ids))
    return tree_of(builder.build(), live)


def assert_exact(found: Tree) -> None:
    """Every total is its own bytes and those of its children; parents come first."""
    children = found.self_bytes.copy()
    np.add.at(children, found.parent[1:], found.total_bytes[1:])
    assert children.tolist() == found.total_bytes.tolist()
    assert (found.parent[1:] < np.arange(1, len(found))).all()


def test_calls_sum_up_to_their_callers(recording):
    stacks = stacks_of([STEP, MAIN], [LOSS, STEP, MAIN])
    history = recording(
        (Action.ALLOC, 1, 512, 2), (Action.ALLOC, 2, 1024, 3), (Action.ALLOC, 3, 512, 3), stacks=stacks
    )

    found = tree(history)

    assert rows(found) == [
        (ROOT, 0, 2048, 3),
        ("main", 0, 2048, 3),
        ("step", 512, 2048, 3),
        ("loss", 1536, 1536, 2),
    ]
    assert found.frame(2) == Frame(*STEP)


def test_frames_of_the_framework_are_folded_on_request(recording):
    stacks = stacks_of([LINEAR, STEP, MAIN])
    history = recording((Action.ALLOC, 1, 512, 3), stacks=stacks)

    assert [row[0] for row in rows(tree(history))] == [ROOT, "main", "step"]
    assert [row[0] for row in rows(tree(history, folded=False))] == [ROOT, "main", "step", "linear"]


def test_what_has_no_call_is_shown_as_such(recording):
    stacks = stacks_of([LINEAR])
    history = recording((Action.ALLOC, 1, 512, 1), (Action.ALLOC, 2, 1536, 0), stacks=stacks)

    found = tree(history)

    assert rows(found) == [(ROOT, 0, 2048, 2), (NO_STACK, 1536, 1536, 1), (FRAMEWORK, 512, 512, 1)]
    assert found.no_stack_bytes == 1536


def test_nothing_is_a_root():
    assert rows(tree(Recording())) == [(ROOT, 0, 0, 0)]
    assert rows(prune(tree(Recording()))) == [(ROOT, 0, 0, 0)]


def test_the_rest_beside_the_biggest_is_other():
    whole = grown([(["big", "main"], 100), (["small", "main"], 7), (["tiny", "main"], 2)])

    found = prune(whole, max_nodes=4)

    assert rows(found) == [(ROOT, 0, 109, 3), ("main", 0, 109, 3), ("big", 100, 100, 1), (OTHER, 9, 9, 2)]
    assert found.parent.tolist() == [0, 0, 1, 1]
    assert [int(node) for node in found.node] == [0, 1, 2, -1]


def test_a_branch_can_be_the_root():
    whole = grown([(["b", "a"], 5), (["c", "b", "a"], 6), (["d"], 100)])

    found = prune(whole, root=2)

    assert rows(found) == [("b", 5, 11, 2), ("c", 6, 6, 1)]
    assert found.node.tolist() == [2, 3]


@given(STACKS)
def test_a_tree_holds_every_byte_once(stacks):
    found = grown(stacks)

    assert_exact(found)
    assert found.total_bytes[0] == sum(size for _, size in stacks)
    assert found.count[0] == len(stacks)


@given(STACKS, st.integers(0, 50), st.integers(2, 20))
def test_pruning_keeps_every_byte_and_the_limit(stacks, root, limit):
    whole = grown(stacks)
    root %= len(whole)

    found = prune(whole, root, limit)

    assert_exact(found)
    assert len(found) <= limit
    assert found.total_bytes[0] == whole.total_bytes[root]
    assert found.count[0] == whole.count[root]
    named = found.node >= 0
    assert found.total_bytes[named].tolist() == whole.total_bytes[found.node[named]].tolist()
