"""Completion: the shells offer what the parsers take, and nothing else."""

import shutil
import subprocess

import pytest

from vramscope import cli

ASK = """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _vramscope; echo "${COMPREPLY[*]}"; }
"""


@pytest.fixture
def script(capsys):
    """``script(shell)``: what ``vramscope completion`` prints for a shell."""

    def print_(shell: str) -> str:
        assert cli.main(["completion", shell]) == 0
        return capsys.readouterr().out

    return print_


def test_bash_offers_commands_options_and_choices_and_leaves_files_to_itself(script):
    asked = [
        "ask vramscope re",
        "ask vramscope --debug le",
        "ask vramscope report --to",
        "ask vramscope export run --to p",
        "ask vramscope report sample",
        "ask vramscope nothing --",
    ]
    code = "\n".join([script("bash"), ASK, *asked])
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == ["report", "leaks", "--top", "parquet perfetto pprof", "", ""]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish on this machine")
def test_fish_offers_commands_options_and_choices(script):
    words = ("vramscope re", "vramscope export --to pp", "vramscope report --to")
    asked = "\n".join(f'complete -C "{line}"' for line in words)
    done = subprocess.run(["fish", "-c", script("fish") + asked], capture_output=True, text=True, check=True)

    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["report", "pprof", "--top"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_zsh_reads_it(script, tmp_path):
    (tmp_path / "_vramscope").write_text(script("zsh"))
    command = ["zsh", "-f", "-c", f"source {tmp_path / '_vramscope'}; print $_comps[vramscope]"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert "_vramscope" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_stands_in_it(shell, script):
    text = script(shell)

    for word in ("report", "serve", "predict", "completion"):
        assert word in text
    for option in ("largest", "max-peak", "redact", "allow-predict"):
        assert option in text
