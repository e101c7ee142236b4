"""What README and CONTRIBUTING show works as pasted."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VRAMSCOPE = Path(sys.executable).with_name("vramscope")


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="recording needs PyTorch")
def test_the_readmes_python_records_and_its_shell_reports_and_serves(serving, tmp_path):
    (code,) = blocks("README.md", "python")
    shown, more = (block for block in blocks("README.md", "") if "traces/" in block)
    report, serve = (line.split() for line in shown.splitlines())
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    for line in more.splitlines():
        words = line.partition("#")[0].split()
        subprocess.run([VRAMSCOPE, *words[1:]], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    reported = subprocess.run(
        [VRAMSCOPE, *report[1:]], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout

    assert "10 steps" in reported
    assert "simulated" in reported or "cuda" in reported
    # The port is left to the system: others may be serving here.
    with serving([sys.executable, "-u", VRAMSCOPE, *serve[1:], "--port", "0"], tmp_path) as server:
        assert server.poll() is None


def test_ci_runs_the_readmes_test_command_and_nothing_else():
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in script if line and not line.startswith(("#", "set ", "cd "))]

    assert commands == ["make test"]
    assert any(block.splitlines()[1].startswith("make test ") for block in blocks("README.md", ""))


def test_every_target_of_the_makefile_that_documents_name_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        target
        for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
        for target in re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / document).read_text(), flags=re.MULTILINE)
    }

    assert {"demo", "test", "check", "format"} <= named <= targets
