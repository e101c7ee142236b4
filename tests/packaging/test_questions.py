"""The analyses are methods that tools can see: completion, ``help``, type checkers."""

import inspect
import io
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

from vramscope.analysis import analyses, own_analyses
from vramscope.analysis.peak import peak
from vramscope.model.recording import Recording

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "generate_questions.py"
TOOLS = Path(sys.executable).parent


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )


def test_the_generated_methods_are_current():
    done = run(sys.executable, SCRIPT, "--check")

    assert done.returncode == 0, done.stderr


def test_every_analysis_is_in_dir_and_is_a_function_with_the_parameters_of_the_analysis():
    for name, analysis in own_analyses().items():
        method = getattr(Recording, name)
        takes = list(inspect.signature(analysis.run).parameters)[1:]

        assert name in dir(Recording())
        assert list(inspect.signature(method).parameters)[1:] == takes, name


def test_help_of_a_method_shows_the_signature_and_the_docstring_of_the_analysis():
    page = io.StringIO()
    pydoc.Helper(output=page)(Recording().peak)
    shown = page.getvalue()

    assert "peak() -> " in shown
    assert inspect.getdoc(peak).splitlines()[0] in shown
    assert "functools" not in shown


def test_an_analysis_of_another_distribution_is_a_method_too(monkeypatch):
    name = "analysis_of_another_distribution"
    foreign = type("Foreign", (), {"run": staticmethod(lambda recording, plus: len(recording.trace) + plus)})
    monkeypatch.setitem(analyses(), name, foreign)

    assert getattr(Recording(), name)(plus=2) == 2


@pytest.mark.slow
def test_a_type_checker_knows_what_a_method_answers(tmp_path):
    source = tmp_path / "asks.py"
    source.write_text(
        "import vramscope\n"
        "from vramscope.model.recording import Recording\n"
        "reveal_type(Recording().peak())\n"
        "reveal_type(vramscope.load('x').recordings[0].window(steps=(1, 2)))\n"
        "Recording().tree(instants=3)\n"
        "vramscope.load('x').recordings[0].peek().allocated\n"
    )

    options = ("--strict", "--cache-dir", tmp_path / "cache", "--follow-imports=silent", "--no-error-summary")
    done = run(TOOLS / "mypy", *options, source)

    assert 'asks.py:3: note: Revealed type is "vramscope.analysis.peak.Peak"' in done.stdout
    assert 'asks.py:4: note: Revealed type is "vramscope.model.recording.Recording"' in done.stdout
    assert 'asks.py:5: error: Unexpected keyword argument "instants"' in done.stdout
    assert 'asks.py:6: error: "Recording" has no attribute "peek"' in done.stdout
