"""The command line: exit codes, one line per error, and nothing heavy before it is needed."""

import os
import re
import subprocess
import sys
from argparse import Namespace
from importlib.metadata import EntryPoint
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from vramscope import cli, commands, registry
from vramscope._version import __version__
from vramscope.commands import Command
from vramscope.errors import FormatError, UnknownNameError, UsageError


def installed(monkeypatch: pytest.MonkeyPatch, command: Command, value: str = f"{__name__}:COMMAND") -> None:
    """Another distribution seems to offer *command*, and nobody else anything."""
    monkeypatch.setattr(sys.modules[__name__], "COMMAND", command, raising=False)
    point = EntryPoint(command.name, value, "vramscope.commands")
    monkeypatch.setattr("vramscope.registry.entry_points_of", lambda _: [point])


def offering(monkeypatch: pytest.MonkeyPatch, run) -> None:
    """A command line with the foreign command ``try``, doing *run*."""
    made = Command("try", "for tests", lambda parser: parser.add_argument("word", nargs="?"), run)
    installed(monkeypatch, made)


def raising(error: BaseException):
    def run(_: Namespace) -> int:
        raise error

    return run


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_a_command_gets_its_arguments_and_its_exit_code_is_ours(monkeypatch):
    offering(monkeypatch, lambda args: 3 if args.word == "forbidden" else 0)

    assert cli.main(["try", "forbidden"]) == 3
    assert cli.main(["try", "fine"]) == 0


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (FormatError("run.pickle: cut short"), "run.pickle: cut short", 1),
        (PermissionError(13, "not allowed", "run.pickle"), "run.pickle: not allowed", 1),
        (OSError(28, "disk full"), "[Errno 28] disk full", 1),
        (UsageError("asked wrongly"), "asked wrongly", 2),
        (UnknownNameError("no export called 'x'"), "no export called 'x'", 2),
    ],
)
def test_an_error_is_one_line_on_stderr_and_an_exit_code(monkeypatch, capsys, error, message, code):
    offering(monkeypatch, raising(error))

    assert cli.main(["try"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"vramscope: {message}\n"


def test_an_error_of_several_lines_is_printed_as_one(monkeypatch, capsys):
    offering(monkeypatch, raising(FormatError("first\nsecond")))

    cli.main(["try"])
    assert capsys.readouterr().err == "vramscope: first second\n"


@pytest.mark.parametrize("words", [["try"], ["try", "--debug"]])
def test_a_name_out_of_a_file_cannot_steer_the_terminal(monkeypatch, capsys, words):
    named = "d/a\x1b]0;owned\x07/\u202erun\x9b2J: cut short"
    for error in (FormatError(named), PermissionError(13, "not allowed", named), UsageError(named)):
        offering(monkeypatch, raising(error))

        assert cli.main(words)
        err = capsys.readouterr().err
        assert "owned" in err
        assert all(line.isprintable() for line in err.splitlines())


def test_the_name_of_a_broken_foreign_command_cannot_steer_the_terminal(monkeypatch, capsys):
    installed(
        monkeypatch, Command("the\x1birs", "", lambda _: None, lambda _: 7), value="no_such\x1b[2J:COMMAND"
    )

    cli.main([])
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--debug", "try"], ["try", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch, capsys, arguments):
    offering(monkeypatch, raising(FormatError("cut short")))

    assert cli.main(arguments) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_bug_of_ours_is_not_dressed_up_as_an_error_of_the_user(monkeypatch):
    offering(monkeypatch, raising(ZeroDivisionError("bug")))

    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_an_interrupt_is_130(monkeypatch):
    offering(monkeypatch, raising(KeyboardInterrupt()))

    assert cli.main(["try"]) == 130


def test_no_command_shows_the_help_and_is_asked_wrongly(capsys):
    assert cli.main([]) == 2
    assert "report" in capsys.readouterr().err


def test_an_unknown_command_is_asked_wrongly():
    with pytest.raises(SystemExit) as exit_:
        cli.main(["no-such-word"])

    assert exit_.value.code == 2


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_the_packages(option, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([option])

    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"vramscope {__version__}\n"


@pytest.mark.parametrize(
    ("words", "usage", "meant"),
    [
        (["reprot"], "usage: vramscope [options] COMMAND", "; did you mean report?"),
        (["report", "x", "--tpo", "3"], "usage: vramscope report ", "; did you mean --top?"),
        (["run", "--mode", "evens", "x.py"], "usage: vramscope run ", "; did you mean events?"),
        (["zzz"], "usage: vramscope [options] COMMAND", ")"),
        (["fit", "x", "extra\x1b[2J"], "usage: vramscope fit ", "extra\\x1b[2J"),
    ],
)
def test_what_is_not_known_ends_with_the_usage_of_its_command_and_what_was_meant(words, usage, meant, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)

    err = capsys.readouterr().err
    assert exit_.value.code == 2
    assert err.startswith(usage)
    assert err.endswith(f"{meant}\n")


def test_the_help_lists_every_command_once_below_its_group(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out.split("commands:\n")[1]
    names = re.findall(r"^    (\w+) ", listed, flags=re.MULTILINE)

    assert re.findall(r"^  (\w+)$", listed, flags=re.MULTILINE) == [
        "record",
        "understand",
        "foresee",
        "share",
    ]
    assert sorted(names) == sorted(registry.parts(commands, Command, refused=lambda *_: None))


def test_a_command_of_others_is_listed_below_others(monkeypatch, capsys):
    offering(monkeypatch, lambda _: 0)

    cli.main([])
    assert "  others\n    try         for tests\n" in capsys.readouterr().err


def test_a_broken_foreign_command_is_named_and_the_others_work(monkeypatch, capsys):
    installed(monkeypatch, Command("theirs", "", lambda _: None, lambda _: 7), value="no_such_module:COMMAND")

    assert cli.main([]) == 2
    err = capsys.readouterr().err
    assert "left out the command theirs: ModuleNotFoundError" in err
    assert "report" in err


def test_a_foreign_command_cannot_take_the_name_of_ours(monkeypatch, capsys):
    installed(monkeypatch, Command("report", "theirs", lambda _: None, lambda _: 7))

    cli.main([])
    assert "left out the command report: TypeError" in capsys.readouterr().err


def test_a_closed_pipe_is_quiet():
    code = (
        "from vramscope import cli, registry\n"
        "from vramscope.commands import Command\n"
        "def run(args):\n"
        "    print('x' * 100_000)\n"
        "    return 0\n"
        "registry.parts = lambda *a, **k: {'try': Command('try', '', lambda p: None, run)}\n"
        "raise SystemExit(cli.main(['try']))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)

    assert done.stderr == b""
    assert done.returncode == 141


def test_letters_that_stdout_has_not_are_no_error(monkeypatch):
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, "ascii", "strict"))
    offering(monkeypatch, lambda _: print("a → b") or 0)

    assert cli.main(["try"]) == 0
    assert written.getvalue() == b"a ? b\n"


def test_the_stdout_of_a_recorded_script_is_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.stdout.encoding, sys.stdout.errors)")

    assert python("-m", "vramscope", "run", str(script)).stdout == "ascii strict\n"


def test_help_loads_nothing_heavy():
    done = python("-X", "importtime", "-m", "vramscope", "--help")

    assert done.returncode == 0
    loaded = {
        line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line
    }
    assert "vramscope" in loaded
    assert loaded.isdisjoint({"numpy", "pyarrow", "rich", "torch", "pandas", "dash", "plotly"})


@pytest.mark.parametrize("name", sorted(registry.parts(commands, Command, refused=lambda *_: None)))
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([name, "--help"])

    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: vramscope {name}")


@pytest.mark.parametrize("words", [["--no-cache", "try"], ["try", "--no-cache"]])
def test_no_cache_switches_the_cache_of_conversions_off(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("VRAMSCOPE_CACHE", "/somewhere")
    seen = []
    offering(monkeypatch, lambda _: seen.append(os.environ["VRAMSCOPE_CACHE"]) or 0)

    assert cli.main(words) == 0
    assert seen == ["off"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "soon"])
@pytest.mark.parametrize("command", ["attach", "detach"])
def test_a_wait_that_is_no_time_is_refused(command, seconds, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "1", f"--wait={seconds}"])

    assert exit_.value.code == 2
    assert f"a number of seconds from 0 to 86,400, not '{seconds}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "x", "--max-fragmentation", "nan"],
        ["attach", "9" * 400],
        ["report", "x", "--rank", "9" * 30],
        ["fit", "x", "--capacity", "9" * 5000 + "GiB"],
        ["check", "x", "--max-peak", "9" * 5000],
    ],
)
def test_a_number_that_is_none_is_one_short_sentence(arguments, capsys):
    if arguments[1] == "x":
        arguments[1] = str(Path(__file__).parents[2] / "sample_traces" / "transformer")

    assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert len(told) < 2000
