"""What a search for holders left out is a note."""

import pytest

from vramscope.allocator.torch_history.stack_reader import StackReader
from vramscope.capture.holders import SearchResult, growth_watch
from vramscope.capture.holders.code_places import is_program
from vramscope.capture.log import NoteLog, StackLog


@pytest.mark.parametrize(("is_complete", "codes"), [(False, ["holders_incomplete"]), (True, [])])
def test_a_search_that_did_not_come_to_its_end_is_noted_once(monkeypatch, is_complete, codes):
    monkeypatch.setattr(growth_watch, "search", lambda *_: SearchResult([], is_complete))
    monkeypatch.setattr(growth_watch, "threads_at_work", lambda: False)
    notes = NoteLog()
    watch = growth_watch.Watch(lambda: 0, lambda *_: True, notes.once)

    watch.explain(None)
    watch.explain(None)

    assert [note.code for note in notes.take()] == codes


def test_stacks_of_cuda_are_cut_to_the_depth_asked_for():
    frames = [{"name": f"f{i}", "filename": "train.py", "line": i} for i in range(5)]
    log = StackLog(depth=2)

    (stack_id, _) = StackReader(log.builder).ids([frames])

    assert [frame.function for frame in log.builder.build().frames(int(stack_id))] == ["f0", "f1"]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_on_the_path_are_no_part_of_the_program(folder):
    assert not is_program(f"/data/venv/lib/python3.11/{folder}/lightning/loops/fit.py")
    assert is_program("/data/train.py")


@pytest.mark.parametrize(("rate", "has_risen"), [(1 << 17, True), (0, False)])
def test_a_rise_below_the_noise_of_batches_is_seen_at_the_end(rate, has_risen):
    """Forty steps whose level varies by 2 MiB: two whole blocks of 16, and the last 16 steps."""
    levels = iter([step * rate + (7 - step % 8) * (1 << 18) for step in range(40)])
    watch = growth_watch.Watch(lambda: next(levels), lambda *_: True)

    for _ in range(40):
        watch.tick("optimizer", 1, None)

    assert (watch.n_walks, watch.has_risen()) == (0, has_risen)
