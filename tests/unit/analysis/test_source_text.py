"""The line that a frame names is shown with its neighbours; a file that is not the one that ran says so."""

import pytest

from vramscope.analysis.lines import SourceLine, excerpt
from vramscope.model.stacks import Frame

TEXT = "import torch\n\n\ndef train(x):\n    y = x * 2\n    return y\n\n\nclass Net:\n    size = 3\n"


def test_the_line_stands_between_its_neighbours():
    found = excerpt(TEXT, Frame("train", "train.py", 5), context=1)

    assert found.lines == (
        SourceLine(4, "def train(x):", is_frame=False),
        SourceLine(5, "    y = x * 2", is_frame=True),
        SourceLine(6, "    return y", is_frame=False),
    )
    assert found.doubt == ""


@pytest.mark.parametrize(("line", "numbers"), [(1, [1, 2, 3]), (10, [8, 9, 10])])
def test_at_the_ends_of_the_file_there_are_fewer(line, numbers):
    found = excerpt(TEXT, Frame("<module>", "train.py", line))

    assert [each.number for each in found.lines] == numbers


@pytest.mark.parametrize("line", [0, -3, 11])
def test_a_line_that_the_file_does_not_have_is_reported(line):
    found = excerpt(TEXT, Frame("train", "train.py", line))

    assert found.lines == ()
    assert "has 10 lines now" in found.doubt


def test_a_line_outside_of_the_function_it_ran_in_tells_of_a_change():
    assert "line 1 is not in train()" in excerpt(TEXT, Frame("train", "train.py", 1)).doubt
    assert "not in forward()" in excerpt(TEXT, Frame("forward", "train.py", 5)).doubt
    assert excerpt(TEXT, Frame("Net", "train.py", 10)).doubt == ""


@pytest.mark.parametrize("function", ["<module>", "<lambda>", "<listcomp>"])
def test_what_has_no_name_of_its_own_is_not_doubted(function):
    assert excerpt(TEXT, Frame(function, "train.py", 5)).doubt == ""


def test_a_decorator_belongs_to_its_function():
    assert excerpt("@cache\ndef f():\n    pass\n", Frame("f", "f.py", 1)).doubt == ""


def test_what_is_no_python_is_shown_without_a_judgement():
    assert excerpt("def (:\n  1\n", Frame("f", "f.py", 2)).doubt == ""


def test_a_file_changed_after_the_recording_is_reported_and_one_from_before_is_not():
    frame = Frame("train", "train.py", 5)

    assert "changed since the recording" in excerpt(TEXT, frame, modified_ns=20, recorded_ns=10).doubt
    assert excerpt(TEXT, frame, modified_ns=10, recorded_ns=20).doubt == ""
    assert excerpt(TEXT, frame, modified_ns=10).doubt == ""


def test_an_endless_line_is_cut():
    assert len(excerpt("x" * 10_000, Frame("<module>", "a.py", 1)).lines[0].text) == 400
