"""Two trees of calls in one: every call has the bytes that its own tree has, whatever is left out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.compare.call_trees import overlaid
from vramscope.analysis.tree import OTHER, Tree, tree_of
from vramscope.model.stacks import StackBuilder

NAMES = st.sampled_from(["a", "b", "c"])
STACKS = st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=5), st.integers(1, 10**6)), max_size=30)
Calls = list[tuple[list[tuple[str, str, int]], int]]


def grown(calls: Calls) -> Tree:
    """The tree of stacks with their bytes; the innermost frame comes first."""
    builder = StackBuilder()
    ids = [builder.add(frames) for frames, _ in calls]
    live = StackBytes.of(stack_id=ids, bytes=[size for _, size in calls], count=[1] * len(ids))
    return tree_of(builder.build(), live)


def unchanged(file: str) -> str:
    return file


def by_path(tree: Tree, n_bytes: np.ndarray) -> dict[tuple[str, ...], int]:
    paths: list[tuple[str, ...]] = []
    for row, parent in enumerate(tree.parent.tolist()):
        paths.append((*(paths[parent] if row else ()), tree.frame(row).function))
    return dict(zip(paths, n_bytes.tolist(), strict=True))


@given(STACKS, STACKS, st.integers(3, 12))
def test_every_call_has_the_bytes_of_its_own_tree_and_what_is_left_out_is_other(before, after, most):
    trees = [grown([([(f, "m.py", 1) for f in names], size) for names, size in s]) for s in (before, after)]
    found = overlaid(*trees, (unchanged, unchanged))
    drawn = found.pruned(0, most)
    everything = by_path(found.tree, found.tree.self_bytes)

    for tree, whole, part in zip(
        trees, (found.before_bytes, found.after_bytes), (drawn.before_bytes, drawn.after_bytes), strict=True
    ):
        own, total = by_path(tree, tree.self_bytes), by_path(tree, tree.total_bytes)
        assert by_path(found.tree, whole) == {path: total.get(path, 0) for path in everything}
        shown = by_path(drawn.tree, part)
        for path, n_bytes in shown.items():
            if path[-1] == OTHER:
                kept = sum(n for each, n in shown.items() if each[:-1] == path[:-1] and each != path)
                assert n_bytes == total.get(path[:-1], 0) - own.get(path[:-1], 0) - kept
            else:
                assert n_bytes == total.get(path, 0)


def test_a_call_whose_line_has_moved_is_one_row_and_files_have_their_common_names():
    main = ("main", "/old/train.py", 9)
    before = grown([([("forward", "/old/net.py", 10), main], 100), ([("loss", "/old/net.py", 20), main], 50)])
    main = ("main", "/new/train.py", 9)
    after = grown([([("forward", "/new/net.py", 12), main], 120), ([("norm", "/new/net.py", 30), main], 10)])
    found = overlaid(before, after, (lambda f: f.removeprefix("/old/"), lambda f: f.removeprefix("/new/")))

    frames = [found.tree.frame(row) for row in range(len(found.tree))]
    pairs = zip(found.before_bytes.tolist(), found.after_bytes.tolist(), strict=True)
    assert dict(zip([(f.function, f.file, f.line) for f in frames], pairs, strict=True)) == {
        ("(all)", "", 0): (150, 130),
        ("main", "/new/train.py", 9): (150, 130),
        ("forward", "/new/net.py", 12): (100, 120),
        ("loss", "/old/net.py", 20): (50, 0),
        ("norm", "/new/net.py", 30): (0, 10),
    }
    # As wide as the larger of both, call by call: 120 + 50 + 10.
    assert found.tree.total_bytes[0] == 180
