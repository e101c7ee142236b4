"""The demo: a training that can be read, and nothing of the user's overwritten."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from vramscope import cli
from vramscope.commands import demo

ROOT = Path(__file__).parents[3]


ANSWERS = {
    "peak": "Peak ",
    "leak": "history.append(loss_d)",
    "oom": "out of memory at step 4 in forward",
    "fleet": "rank 2",
    "predict": "fits on the RTX 4090",
}


@pytest.mark.parametrize("sample", ANSWERS)
def test_a_sample_answers_its_question_without_torch(sample, monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda _: None)

    assert cli.main(["demo", sample, "--no-serve"]) == 0
    assert ANSWERS[sample] in capsys.readouterr().out


def test_the_list_has_every_sample_with_a_page_and_a_script_that_exist(capsys):
    assert cli.main(["demo", "--list"]) == 0
    listed = capsys.readouterr().out
    documented = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").split("## `demo`")[1]

    for name, folder, script, command, page, question in demo._samples():
        assert f"vramscope demo {name} " in listed
        assert (ROOT / "sample_traces" / script).exists()
        assert (ROOT / "sample_traces" / folder).is_dir()
        assert (ROOT / "docs" / page.partition(".html")[0]).with_suffix(".md").exists()
        row = rf"\| `{name}` \| {re.escape(question)} \| `{command}` \| \[.*\]\({page.partition('.')[0]}|#"
        assert re.search(row, documented)
    assert [name for name, *_ in demo._samples()] == list(ANSWERS)


def test_without_torch_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda _: None)

    assert cli.main(["demo", "--no-serve"]) == 1
    assert 'pip install "vramscope[torch]"' in capsys.readouterr().err


@pytest.mark.skipif(find_spec("torch") is None, reason="training needs PyTorch")
def test_what_is_there_already_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("my own")

    assert cli.main(["demo", "--no-serve", "--output", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine.py").read_text() == "my own"
    assert "choose another --output" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="training needs PyTorch")
def test_it_trains_records_and_reports(tmp_path):
    command = [sys.executable, "-m", "vramscope", "demo", "--no-serve", "--steps", "2", "--output", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "step  2 of 2  loss" in done.stdout
    assert "forward" in done.stdout
    assert "run.py" in done.stdout
    assert (tmp_path / "run.py").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="training needs PyTorch")
@pytest.mark.skipif(find_spec("dash") is None, reason="serving needs the dashboard extra")
def test_it_serves_while_it_trains_and_ends_the_training_with_itself(serving, tmp_path):
    command = [sys.executable, "-u", "-m", "vramscope", "demo", "--steps", "1000", "--port", "0"]
    with serving(command, tmp_path) as demo:
        progress = next(line for line in demo.stdout if line.startswith("step "))

    # The fixture reads on until no process holds the pipe any more, the training included.
    assert progress.startswith("step  1 of 1000")
