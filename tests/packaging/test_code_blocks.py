"""Every block of code in the documents is of a language that is checked, and every command in it exists."""

import ast
import json
import re
import shlex
import shutil
import subprocess
from argparse import ArgumentError, ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

from vramscope import commands, registry
from vramscope.commands import Command

ROOT = Path(__file__).parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = registry.parts(commands, Command, refused=lambda *_: None)
MAKE = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
LANGUAGES = {"", "console", "python", "pycon", "json", "toml", "yaml", "sql", "html"}


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each block."""
    return iter(re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL))


def lines(text: str) -> Iterator[str]:
    """Each line of a shell in a document, without prompt and comment, where it is meant to be typed."""
    for language, code in blocks(text):
        if language in ("", "console"):
            for line in code.replace("\\\n", " ").splitlines():
                typed = line.removeprefix("$ ") if line.startswith("$ ") or language == "" else ""
                # A synopsis, with its brackets and dots, is no command.
                if not re.search(r"[\[\]…<>]", typed):
                    yield typed.partition(" #")[0].strip()


def of_vramscope(text: str) -> list[list[str]]:
    """The words of each call of vramscope, up to a pipe, also one within another command."""
    found = []
    for line in lines(text):
        words = shlex.split(re.split(r" \| |; | && | >", line)[0]) if line.count("'") % 2 == 0 else []
        if "vramscope" in words and words[0] in ("vramscope", "srun", "torchrun", "env"):
            found.append(words[words.index("vramscope") + 1 :])
    return found


def problem(words: list[str]) -> str:
    """Why the command line would not take these words; '' if it would."""
    if words[:1] in (["--help"], ["--version"], ["-V"]):
        return ""
    if not words or words[0] not in COMMANDS:
        return f"no command: {words}"
    parser = ArgumentParser(words[0], exit_on_error=False)
    parser.add_argument("--debug", action="store_true")
    parser.error = lambda message: (_ for _ in ()).throw(ValueError(message))
    COMMANDS[words[0]].arguments(parser)
    try:
        parser.parse_args([word for word in words[1:] if word != "RUN_OR_DIRECTORY"])
    except (ArgumentError, ValueError, SystemExit) as error:
        return f"{words}: {error}"
    return ""


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)
def test_every_block_is_of_a_known_language_and_is_that(doc):
    for language, code in blocks(doc.read_text(encoding="utf-8")):
        assert language in LANGUAGES, f"{doc.name}: {language}"
        if language == "python":
            ast.parse(code)
        if language == "toml":
            tomllib.loads(code)
        if language == "json" and "…" not in code:
            json.loads(code)
        if language == "yaml":
            pytest.importorskip("yaml").safe_load(code)


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)
def test_every_command_in_a_block_is_one_that_its_parser_takes(doc):
    found = of_vramscope(doc.read_text(encoding="utf-8"))

    assert [text for text in map(problem, found) if text] == []


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)
def test_every_target_of_make_in_a_block_exists(doc):
    words = [line.split() for line in lines(doc.read_text(encoding="utf-8"))]

    assert [line[1] for line in words if line[:1] == ["make"] and len(line) > 1 and line[1] not in MAKE] == []


def test_the_test_of_commands_sees_commands():
    text = "```\nvramscope report x --tpo 3\nvramscope reprot x\nvramscope run [--x] Y\n```\n"

    assert of_vramscope(text) == [["report", "x", "--tpo", "3"], ["reprot", "x"]]
    assert all(problem(words) for words in of_vramscope(text))
    assert problem(["report", "x", "--top", "3"]) == ""
    assert len(of_vramscope((ROOT / "docs" / "start.md").read_text())) > 4


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize("doc", [ROOT / "README.md", ROOT / "docs" / "start.md"], ids=lambda doc: doc.name)
def test_a_shell_reads_what_is_to_be_typed(doc):
    script = "\n".join(lines(doc.read_text(encoding="utf-8")))

    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False).stderr == b""
