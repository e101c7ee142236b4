"""What a search for holders left out is a note."""

import pytest

from vramscope.allocator.torch_history.stack_reader import StackReader
from vramscope.capture.holders import SearchResult, growth_watch
from vramscope.capture.holders.code_places import is_program
from vramscope.capture.log import StackLog


@pytest.mark.parametrize(("is_complete", "codes"), [(False, ["holders_incomplete"]), (True, [])])
def test_a_search_that_did_not_come_to_its_end_is_noted_once(monkeypatch, is_complete, codes):
    monkeypatch.setattr(growth_watch, "search", lambda *_: SearchResult([], is_complete))
    monkeypatch.setattr(growth_watch, "threads_at_work", lambda: False)
    notes = []
    watch = growth_watch.Watch(lambda: 0, lambda *_: True, notes.append)

    watch.explain(None)
    watch.explain(None)

    assert [note.code for note in notes] == codes


def test_stacks_of_cuda_are_cut_to_the_depth_asked_for():
    frames = [{"name": f"f{i}", "filename": "train.py", "line": i} for i in range(5)]
    log = StackLog(depth=2)

    (stack_id, _) = StackReader(log.builder).ids([frames])

    assert [frame.function for frame in log.builder.build().frames(int(stack_id))] == ["f0", "f1"]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_on_the_path_are_no_part_of_the_program(folder):
    assert not is_program(f"/data/venv/lib/python3.11/{folder}/lightning/loops/fit.py")
    assert is_program("/data/train.py")
