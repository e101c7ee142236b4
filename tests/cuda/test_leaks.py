"""Growth as genuine CUDA torch shows it: in its own history with Python stacks, whole and cut to a ring,
outside of torch, in the cache. And leaks whose lines only CUDA hides: of backward, and of other threads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vramscope.analysis.leaks import findings
from vramscope.loading import load
from vramscope.model.marks import Marks, Phases, Steps

pytestmark = [pytest.mark.standin, pytest.mark.xdist_group("cuda-leaks")]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "scripts" / "leak_runs.py"
(LINE,) = (at for at, text in enumerate(SCRIPT.read_text().splitlines(), 1) if "# LEAK" in text)
HIDDEN = ("leaking/sparse_gradient", "holdout/leak_backward_hook", "trial/leak_futures_of_evaluation")
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(python, tmp_path_factory):
    made = tmp_path_factory.mktemp("leaks")
    done = python(SCRIPT, made, cwd=made)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def hidden(python, module_at, tmp_path_factory):
    """Name → what was found in the script."""
    known, out = module_at(ROOT / "tests" / "leaks" / "corpus.py"), tmp_path_factory.mktemp("hidden")
    chosen = [
        script for name in HIDDEN for script in known.scripts(name.split("/")[0]) if script.name == name
    ]
    done = python(known.HERE / "run.py", out, "cuda", 10, *(script.path for script in chosen), cwd=out)
    assert done.returncode == 0, done.stderr
    return {
        script.name: known.examine(script, out / f"{script.name.replace('/', '-')}-10") for script in chosen
    }


def found_in(path):
    (recording,) = load(path).recordings
    result = recording.leaks()
    return result, findings(result)


@pytest.mark.parametrize("name", ["whole.pickle", "ring.pickle"])
def test_torch_s_own_history_shows_the_leak_with_its_line(folder, name):
    """No holders, and no steps but what torch notes of its optimizer; of the ring's 40 most are gone."""
    _, reported = found_in(folder / name)

    assert (reported[0].kind, reported[0].line, Path(reported[0].file).name) == ("leak", LINE, "leak_runs.py")
    assert reported[0].bytes_per_step == pytest.approx(128 * 256 * 4, rel=0.05)
    assert (reported[0].cause, reported[0].holder) == ("unknown", None)
    assert [finding.kind for finding in reported].count("leak") == 1


@pytest.mark.parametrize("name", ["whole.pickle", "ring.pickle"])
def test_the_leak_is_there_too_where_nothing_says_what_a_step_is(folder, name):
    (recording,) = load(folder / name).recordings
    result = replace(recording, steps=Steps.of(), phases=Phases.of(), marks=Marks.of()).leaks()
    reported = findings(result)

    assert not result.has_steps
    assert (reported[0].kind, reported[0].line) == ("leak", LINE)
    assert reported[0].bytes_per_step == pytest.approx(128 * 256 * 4, rel=0.05)


def test_steps_that_the_ring_lost_are_not_compared(folder):
    (recording,) = load(folder / "ring.pickle").recordings
    turns = recording.leaks().iteration_boundaries

    assert len(recording.steps) == 40
    assert 7 <= len(turns) < 20
    assert (turns[1:] > turns[:-1]).all()


def test_a_ring_of_a_loop_that_keeps_nothing_has_no_finding(folder):
    assert found_in(folder / "clean.pickle")[1] == []


def test_what_a_library_takes_from_the_driver_each_step_grows_outside_of_torch(folder):
    _, reported = found_in(folder / "outside")

    assert [finding.kind for finding in reported] == ["outside_growth"]
    assert reported[0].bytes_per_step == pytest.approx(4 * MIB, rel=0.15)


def test_a_leak_is_the_same_size_with_us_watching(folder):
    levels = json.loads((folder / "levels.json").read_text())
    (recording,) = load(folder / "watched").recordings

    assert len(recording.holders)
    assert levels["watched"] == levels["plain"]
    assert levels["plain"][-1] - levels["plain"][-2] == 128 * 256 * 4


def test_blocks_that_fit_into_nothing_free_are_growth_of_the_cache(folder):
    _, reported = found_in(folder / "fragmented")

    assert [finding.kind for finding in reported] == ["cache_growth"]


@pytest.mark.parametrize("name", HIDDEN)
def test_what_has_no_stack_of_its_own_thread_is_reported_with_line_cause_and_holder(hidden, name):
    found = hidden[name]

    assert len(found.findings) == 1
    assert found.leak.cause == found.script.cause
    assert found.has_right_line
    assert found.has_right_holder
