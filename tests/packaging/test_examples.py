"""What README and the documents show works as pasted, and prints what they show."""

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VRAMSCOPE = Path(sys.executable).with_name("vramscope")


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


def commands_of(document: str) -> list[tuple[str, str]]:
    """Each command after a $ in a block "console" of a document, with the output that stands below it."""
    text = "".join(blocks(document, "console"))
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE)
    return [(command, output) for command, output in found if "sample_traces" in command]


SHOWN = [
    pytest.param(*shown, id=f"{document.name}: {shown[0][:40]}")
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for shown in commands_of(str(document.relative_to(ROOT)))
]


def printed(command: str) -> str:
    """What a shell prints in the root, without blank lines around; what stands before a pipe runs once."""
    before, pipe, after = command.partition(" | ")
    return (run_in_shell(after, ROOT, run_once(before)) if pipe else run_once(command)).strip("\n")


@cache
def run_once(command: str) -> str:
    return run_in_shell(command, ROOT)


def run_in_shell(command: str, cwd: Path, read: str = "") -> str:
    """What a shell prints where ``vramscope`` is the one of this environment."""
    path = os.pathsep.join([str(VRAMSCOPE.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd,
        input=read,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # 3: a card is too small, or a check fails
    return done.stdout


@pytest.mark.xdist_group("documents")  # several documents show parts of one output
@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_on_a_sample_prints_what_the_document_shows(command, output):
    if "predict" in command and importlib.util.find_spec("torch") is None:
        pytest.skip("a dry run needs PyTorch")

    assert printed(command) == output.strip("\n")


def test_the_readme_answers_three_questions_with_output_of_the_samples():
    shown = [command.split()[1] for command, _ in commands_of("README.md")]

    assert shown == ["report", "leaks", "predict"]
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="recording needs PyTorch")
def test_the_readmes_python_records_and_its_shell_records_reports_and_serves(serving, tmp_path):
    (code,) = blocks("README.md", "python")
    run, serve = (line.partition("#")[0].split() for line in blocks("README.md", "")[0].splitlines())
    asked = re.findall(r"`(vramscope \w+ traces/first[^`]*)`", (ROOT / "README.md").read_text())
    (tmp_path / "train.py").write_text(code)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    subprocess.run([VRAMSCOPE, *run[1:]], cwd=tmp_path, check=True)
    reported = run_in_shell("vramscope report traces/first", tmp_path)

    assert "10 steps" in reported
    assert "simulated" in reported or "cuda" in reported
    assert len(asked) == 3
    assert all(run_in_shell(command, tmp_path) for command in asked)
    # The port is left to the system: others may be serving here.
    with serving([sys.executable, "-u", VRAMSCOPE, *serve[1:], "--port", "0"], tmp_path) as server:
        assert server.poll() is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="recording needs PyTorch")
def test_the_tests_of_the_tutorial_pass_and_its_exercise_fails_as_the_solution_says(tmp_path):
    (code,) = blocks("docs/tutorial-ci.md", "python")
    (said,) = [block for block in blocks("docs/tutorial-ci.md", "") if "grows" in block]
    before, last = code.rsplit("        train_one_step()\n", 1)
    (tmp_path / "test_memory.py").write_text(code)
    (tmp_path / "test_kept.py").write_text(f"{before}        outputs.append(train_one_step())\n{last}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "1 failed, 3 passed" in done.stdout
    assert said in done.stdout


def test_ci_runs_the_readmes_test_command_and_nothing_else():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in script if line and not line.startswith(("#", "set ", "cd "))]

    assert commands == ["make test"]
    assert any("\nmake test " in block for block in blocks("README.md", ""))


def test_every_target_of_the_makefile_that_documents_name_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        target
        for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
        for target in re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / document).read_text(), flags=re.MULTILINE)
    }

    assert {"demo", "test", "check", "format"} <= named <= targets
