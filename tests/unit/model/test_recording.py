"""A recording answers its analyses as methods, and a run knows its ranks."""

import copy
import pickle

import pytest

from vramscope.model.device import Process
from vramscope.model.recording import Recording, Run
from vramscope.model.trace import Trace


def test_an_unknown_analysis_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no analysis 'astrology'"):
        Recording().astrology()


def test_an_analysis_called_wrongly_is_named_in_the_error():
    with pytest.raises(TypeError, match=r"\bidentity\(\)"):
        Recording().identity(astrology=1)


def test_recordings_copy_and_pickle_like_any_value():
    recording = Recording(source="cuda")

    assert copy.copy(recording).source == "cuda"
    assert pickle.loads(pickle.dumps(recording)).source == "cuda"


def test_a_run_groups_its_recordings_by_rank():
    first, second, third = (Recording(process=Process(rank=rank)) for rank in (0, 0, 1))

    assert Run("run", "", (first, second, third)).ranks == {0: (first, second), 1: (third,)}


def test_at_a_prompt_a_run_is_one_line():
    recording = Recording(source="cuda", process=Process(rank=3), trace=Trace.of(action=[0] * 2000))
    shown = "<Recording of rank 3, device 0, cuda: 2,000 events, 0 steps>"

    assert repr(recording) == shown
    assert repr(Run("gpt", "", (recording,))) == f"<Run 'gpt', file: [{shown}]>"


def test_in_a_notebook_a_run_shows_its_recordings():
    run = Run("gpt", "", tuple(Recording(process=Process(rank=rank)) for rank in range(100)))

    assert "rank 7" in run._repr_html_()
    assert "rank 8" not in run._repr_html_()
