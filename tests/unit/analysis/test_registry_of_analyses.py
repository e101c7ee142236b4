"""Every analysis is a method of Recording, and takes a recording of nothing."""

from dataclasses import fields

import pytest

from vramscope.analysis import analyses
from vramscope.model.finding import Finding
from vramscope.model.recording import Recording


def test_no_analysis_is_hidden_by_a_field():
    assert not set(analyses()) & {field.name for field in fields(Recording)}


@pytest.mark.parametrize("name", analyses())
def test_every_analysis_is_a_method_named_after_its_file(name):
    analysis = analyses()[name]

    assert analysis.run.__name__ == analysis.run.__module__.rpartition(".")[2] == name
    assert analysis.question.endswith("?")


@pytest.mark.parametrize("name", analyses())
def test_every_analysis_takes_a_recording_of_nothing(name):
    result = getattr(Recording(), name)()

    found = analyses()[name].findings
    assert result is not None
    assert all(isinstance(finding, Finding) for finding in (found(result) if found else ()))
