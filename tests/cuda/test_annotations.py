"""Texts that the program puts on its memory: recorded, and read from a snapshot, on the same blocks."""

import json

import pytest
from standin_fixtures import AFTER, BEFORE, TORCH

from vramscope.analysis.lifetimes import lifetimes
from vramscope.formats.torch_snapshot import read, read_packed, read_whole
from vramscope.loading import load

pytestmark = pytest.mark.standin

IS_NEW = tuple(map(int, TORCH.split(".")[:2])) >= (2, 14)
needs_annotations = pytest.mark.skipif(not IS_NEW, reason="torch 2.14 brought annotations")

PROGRAM = """
import sys
import vramscope
memory = torch.cuda.memory
MiB = 1 << 20

def tensor(n):
    return torch.empty(n * MiB, dtype=torch.uint8, device="cuda")

def body():
    said = []
    first = tensor(3)
    memory._annotate_tensor(first, "batch 0")
    memory._set_memory_metadata("decoder")
    second, third = tensor(5), tensor(7)
    memory._set_memory_metadata("")
    fourth = tensor(11)
    memory._annotate_tensor(second[100:], "output")
    memory._annotate_tensor(first, "again")
    said += [(each.data_ptr(), each.nbytes) for each in (first, second, third, fourth)]
    del third
    fifth = tensor(7)  # where the third one was
    said.append((fifth.data_ptr(), fifth.nbytes))
    torch.cuda.synchronize()
    return said, (first, second, fourth, fifth)

if sys.argv[2] == "live":
    with vramscope.record(sys.argv[1], quiet=True):
        answer, kept = body()
else:
    memory._record_memory_history(stacks="python")
    answer, kept = body()
    memory._dump_snapshot(sys.argv[1])
"""

TEXTS = [("batch 0", "again"), ("decoder", "output"), ("decoder",), (), ()]
"""The texts of the five tensors, in the order of the program."""


@pytest.fixture(scope="module")
def outcome_of(python, tmp_path_factory):
    """``outcome_of("live")``: what the program said of its tensors, and the file or folder."""
    folder = tmp_path_factory.mktemp("texts")

    def outcome(way):
        script, found = folder / f"{way}.py", folder / f"{way}.pickle"
        script.write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / f"{way}.json")))
        done = python(script, found, way, cwd=folder)
        assert done.returncode == 0, done.stderr
        return json.loads((folder / f"{way}.json").read_text()), found

    return outcome


def texts_by_tensor(recording, said):
    """The texts of each tensor that the program named, in the order of allocation."""
    found, texts = lifetimes(recording), recording.annotations()
    rows = [
        next(row for row in range(len(found)) if found.size[row] == size and found.address[row] == address)
        for address, size in said[:4]
    ]
    last = max(row for row in range(len(found)) if found.size[row] == said[4][1])
    return [texts.texts_of(row) for row in (*rows, last)]


@needs_annotations
def test_a_recording_has_the_texts_of_each_block(outcome_of):
    said, folder = outcome_of("live")

    recording = load(folder).recordings[0]

    assert texts_by_tensor(recording, said) == TEXTS
    assert "unknown_action" not in {note.code for note in recording.notes}


@needs_annotations
@pytest.mark.parametrize("reader", [read, read_packed, read_whole])
def test_a_snapshot_has_the_texts_of_each_block(outcome_of, reader):
    said, file = outcome_of("dumped")

    recording = reader(file).recordings[0]

    assert texts_by_tensor(recording, said) == TEXTS
    assert "unknown_action" not in {note.code for note in recording.notes}


@needs_annotations
def test_a_search_finds_blocks_by_their_texts(outcome_of):
    said, folder = outcome_of("live")
    recording = load(folder).recordings[0]

    sizes = [
        recording.allocations(where).block_bytes.tolist()
        for where in ("annotation:decoder", "annotation:batch", "annotation:batch*0", "annotation:none")
    ]

    assert sizes == [[said[2][1], said[1][1]], [3 << 20], [3 << 20], []]
