"""The export command writes to the given path, and over nothing."""

from importlib import import_module

import pytest

from vramscope import cli
from vramscope.model.recording import Recording, Run


@pytest.fixture(autouse=True)
def _one_empty_recording(monkeypatch):
    run = Run("run", "run", (Recording(),))
    monkeypatch.setattr(import_module("vramscope.loading"), "load", lambda _: run)


@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_it_writes_one_file_per_table_and_says_where(tmp_path, capsys, name):
    output = tmp_path / "new" / "folder"

    assert cli.main(["export", "run", "--to", name, "--output", str(output)]) == 0
    files = list((output / "rank0-device0").iterdir())
    assert {file.suffix for file in files} == {f".{name}"}
    assert f"{len(files)} files" in capsys.readouterr().out


def test_the_help_names_a_format_as_soon_as_a_file_declares_it(tmp_path, capsys, monkeypatch):
    declared = "from vramscope.export import Export\nEXPORT = Export('jsonlines', '', lambda run, path: [])\n"
    (tmp_path / "jsonlines.py").write_text(declared)
    package = import_module("vramscope.export")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])

    shown = capsys.readouterr().out.split("--to FORMAT")[-1]
    assert {"csv,", "html,", "jsonlines,", "memory_viz,", "speedscope"} <= set(shown.split())


@pytest.mark.parametrize("taken", ["file", "folder"])
def test_nothing_is_overwritten_unasked(tmp_path, capsys, taken):
    output = tmp_path / "output"
    mine = output if taken == "file" else output / "mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("my own")

    assert cli.main(["export", "run", "--to", "csv", "--output", str(output)]) == 2
    assert mine.read_text() == "my own"
    assert "--force" in capsys.readouterr().err


def test_force_writes_over_an_earlier_export_and_leaves_other_files(tmp_path):
    command = ["export", "run", "--to", "csv", "--output", str(tmp_path)]
    (tmp_path / "mine").write_text("my own")

    assert cli.main([*command, "--force"]) == 0
    assert cli.main([*command, "--force"]) == 0
    assert (tmp_path / "mine").read_text() == "my own"


def test_an_unknown_format_lists_the_known_ones(tmp_path, capsys):
    assert cli.main(["export", "run", "--to", "xls", "--output", str(tmp_path / "x")]) == 2
    assert (
        "there is: csv, flamegraph, html, memory_viz, parquet, perfetto, pprof, speedscope"
        in capsys.readouterr().err
    )
