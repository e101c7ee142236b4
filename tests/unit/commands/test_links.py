"""Places in a terminal are links to an editor (OSC 8); where a link could be wrong there is none."""

import os
import re

import pytest

from vramscope.cli import main
from vramscope.commands._document import Grid, Text, print_terminal
from vramscope.commands._links import Links, files_of
from vramscope.errors import UsageError
from vramscope.model.recording import Recording
from vramscope.model.stacks import StackBuilder

EDITOR = "VRAMSCOPE_EDITOR"
LINK = re.compile(r"\x1b\]8;[^;]*;([^\x1b]+)\x1b\\(.*?)\x1b\]8;;\x1b\\")
COLOR = re.compile(r"\x1b\[[\d;]*m")
PAGE = (
    Text("memory grows in net/model.py:31 (forward)", "warning"),
    Grid(("line", "bytes"), (("net/model.py:7 init", "3"), ("other.py:1", "4")), "lr"),
)


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "a b" / "net" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    return file


@pytest.fixture
def printed(capsys, monkeypatch):
    """``printed(files, editor, is_terminal=…)``: the links of the page as (URL, text)."""

    def show(files, editor=None, *, is_terminal=True):
        for name in ("TERM_PROGRAM", "TERMINAL_EMULATOR", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("FORCE_COLOR", "1") if is_terminal else monkeypatch.delenv(
            "FORCE_COLOR", raising=False
        )
        monkeypatch.setenv(EDITOR, editor) if editor else monkeypatch.delenv(EDITOR, raising=False)
        print_terminal(PAGE, files)
        out = capsys.readouterr().out
        assert "net/model.py:31" in out
        return LINK.findall(COLOR.sub("", out))

    return show


def test_each_place_of_a_known_file_opens_in_the_editor(printed, model):
    path = str(model).replace(" ", "%20")

    assert printed([str(model)], "vscode") == [
        (f"vscode://file{path}:31", "net/model.py:31"),
        (f"vscode://file{path}:7", "net/model.py:7"),
    ]
    assert printed([str(model)], "idea://open?f={file}&l={line}")[0][0] == f"idea://open?f={path}&l=31"
    assert printed([str(model)])[0][0].endswith(path)


def test_there_is_no_link_where_it_could_be_wrong_or_is_not_wanted(printed, model, tmp_path):
    twin = tmp_path / "net" / "model.py"
    twin.parent.mkdir()
    twin.write_text("")

    assert printed([str(model), str(twin)], "vscode") == []
    assert printed(["/home/of/another/net/model.py"], "vscode") == []
    assert printed([str(model)], "none") == []
    assert printed([str(model)], "vscode", is_terminal=False) == []


def test_the_files_of_a_recording_are_those_of_its_stacks():
    stacks = StackBuilder()
    stacks.add([("forward", "/net/model.py", 3), ("train", "/net/train.py", 4)])

    assert set(files_of([Recording(stacks=stacks.build())])) >= {"/net/model.py", "/net/train.py"}


@pytest.mark.parametrize("editor", ["emacs", "http://x/{line}", "vi://{file}{column}", "{"])
def test_an_editor_that_is_neither_a_name_nor_a_template_is_refused(editor):
    with pytest.raises(UsageError, match="vscode, pycharm, file, none"):
        Links([], editor)


def test_the_option_chooses_for_its_command(tmp_path, monkeypatch):
    monkeypatch.setenv(EDITOR, "none")
    main(["report", str(tmp_path / "nothing"), "--editor", "vscode"])

    assert os.environ[EDITOR] == "vscode"
