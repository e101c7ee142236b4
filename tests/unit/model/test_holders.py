"""Holders as a table: what comes out of it are the words that went in, in every shape that capture makes."""

import numpy as np
import pytest

from vramscope.model.holders import Holders

PATHS = [
    (("local", "trainer", "main", "train.py", 9), ("attribute", "states", "Trainer"), ("item", 3, "list")),
    (("global", "cache", "train.py"), ("key", "'w'", "dict"), ("item", 0, "deque of 8")),
    (("global", "cache", "train.py"), ("key", "<Batch>", "dict", 2**47), ("item", "…", "set", 2**47 + 8)),
    (
        ("context", "current"),
        ("closure", "kept", "make.<locals>.hook"),
        ("default", "", "f"),
        ("part", "cell"),
    ),
    (("unreachable", "Tensor"), ("grad", "grad"), ("part", "view"), ("bound", "", "step")),
    (
        ("local", "loss", "main", "train.py", 4),
        ("graph", "", 512),
        ("nodes", [["AddBackward0", 1], ["MulBackward0", 7]]),
        ("saved", "self", "MmBackward0"),
    ),
    (
        ("local", "e", "main", "train.py", 0),
        ("traceback", "ValueError"),
        ("traceback", ""),
        ("frame", "x", "step", "model.py", 12),
    ),
    (
        ("global", "hooks", "pytest"),
        ("hook", "keep", "train.py", 31),
        ("ctx", "low", "Round"),
        ("variable", "", "Node"),
    ),
    (
        ("local", "log", "main", "train.py", 9),
        ("item", 1, "list"),
        ("kept_at", "train.py", 8, "log.append(x)", 1),
        ("limit", "train.py", 7, "`len(log) < 50`", 1, "50"),
    ),
]


@pytest.mark.parametrize("words", PATHS)
def test_the_words_of_a_path_come_back(words):
    assert (
        Holders.of_paths([(7, 2**63, words)]).holding(0, len(Holders.of_paths([(7, 2**63, words)]))).words
        == words
    )


def test_every_path_begins_where_the_one_before_ends():
    table = Holders.of_paths([(at, 512 * at, words) for at, words in enumerate(PATHS)])
    first = table.first_rows()
    ends = np.append(first[1:], len(table))

    assert [table.holding(*rows).words for rows in zip(first.tolist(), ends.tolist(), strict=True)] == PATHS
    assert table.event[first].tolist() == list(range(len(PATHS)))
    assert table.address[first].tolist() == [512 * at for at in range(len(PATHS))]
