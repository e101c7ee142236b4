"""A page in words is data to the terminal and to Markdown: no name in it can act."""

import os
import sys
from contextlib import suppress

import pytest

from vramscope.commands._document import Grid, Heading, Text, markdown, print_terminal, printable
from vramscope.errors import VramscopeError

HOSTILE = "\x1b[2Jgone\r[bold]<b>|`__init__`"


def test_printable_shows_control_characters_instead_of_sending_them():
    assert printable("a\x1b[2J\nb\u202ec\udc80é ←") == "a\\x1b[2J\\nb\\u202ec\\udc80é ←"


def test_names_cannot_move_the_cursor_or_style_the_terminal(capsys):
    print_terminal([Heading(HOSTILE), Text(HOSTILE, "note"), Grid(("a",), ((HOSTILE,),), "l")])

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\\x1b[2Jgone\\r[bold]<b>|`__init__`") == 3


def test_a_file_is_not_cut_at_the_width_of_a_terminal(capsys):
    print_terminal([Grid(("where",), (("x" * 120,),), "l")])

    assert "x" * 120 in capsys.readouterr().out


def test_a_narrow_terminal_folds_words_and_never_cuts_a_figure(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    figures = ("14.4 MiB", "step 7 backward", "1,234,567,890", "99.9 %")
    print_terminal([Grid(("what it is", *"abcd"), (("a long line of words", *figures),), "lrrrr")])

    out = capsys.readouterr().out
    assert "  ".join(figures) in out
    assert "a long line of words" not in out
    assert [word for word in out.split() if word in ("a", "long", "line", "of", "words")][-1] == "words"


def test_a_closed_pipe_is_an_error_for_the_command_line_to_tell(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w", 1) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            print_terminal([Text("anything")])


def test_without_rich_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)

    with pytest.raises(VramscopeError, match=r"pip install rich, or ask for --json"):
        print_terminal([Text("anything")])


def test_markdown_escapes_what_would_be_markup():
    shown = markdown([Grid(("name",), (("<b>|`__init__`",),), "l")])

    assert shown == "| name |\n| --- |\n| \\<b\\>\\|\\`\\_\\_init\\_\\_\\` |\n"


def test_markdown_has_headings_lists_and_aligned_tables():
    shown = markdown(
        [Heading("Run", 1), Text("one"), Text("two"), Heading("Table"), Grid(("", "n"), (("a", "1"),), "lr")]
    )

    assert shown == "# Run\n\n- one\n- two\n\n## Table\n\n|  | n |\n| --- | ---: |\n| a | 1 |\n"


def test_what_goes_to_a_file_is_not_padded(capsys):
    rows = (("command", "python " + "x" * 240), ("rank", "0"))

    print_terminal([Heading("run"), Grid(("", ""), rows, "ll"), Text("end")])

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert "rank     0" in lines
