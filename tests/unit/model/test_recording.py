"""A recording answers its analyses as methods, and a run knows its ranks."""

import copy
import pickle

import pytest

from vramscope.model.device import Process
from vramscope.model.recording import Recording, Run


def test_an_unknown_analysis_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no analysis 'astrology'"):
        Recording().astrology()


def test_recordings_copy_and_pickle_like_any_value():
    recording = Recording(source="cuda")

    assert copy.copy(recording).source == "cuda"
    assert pickle.loads(pickle.dumps(recording)).source == "cuda"


def test_a_run_groups_its_recordings_by_rank():
    first, second, third = (Recording(process=Process(rank=rank)) for rank in (0, 0, 1))

    assert Run("run", "", (first, second, third)).ranks == {0: (first, second), 1: (third,)}
