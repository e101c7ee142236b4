"""Whatever is done to the files of a run, no check passes that the whole run fails."""

import shutil
from pathlib import Path

import pytest

from vramscope import cli
from vramscope.model.recording import Outcome

MIB = 1 << 20
TRUE_PEAK = 286 * MIB
"""A model of 20, an evaluation of 200 in the tenth step, 64 of activations and 2 of a gradient."""


def zeroed(file: Path, place: float) -> None:
    data = bytearray(file.read_bytes())
    at = int(len(data) * place)
    data[at : at + 64] = bytes(len(data[at : at + 64]))
    file.write_bytes(data)


def cut(file: Path, place: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * place)])


def gone(file: Path, _: float) -> None:
    file.unlink()


def doubled(file: Path, place: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data + data[int(len(data) * place) :])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_program) -> Path:
    path: Path = tmp_path_factory.mktemp("whole") / "run"
    program = make_program(path)
    program.begin()
    for number in range(12):
        if number == 9:
            large = program.malloc(200 * MIB, program.stack("evaluate", 77))
        program.step()
        if number == 9:
            program.free(large)
    program.flush()
    program.writer.close(Outcome.FINISHED)
    return path


FILES = ("events-0.arrows", "marks-0.arrows", "stacks.arrows", "manifest.json")


def test_the_whole_run_keeps_its_peak_and_nothing_below(whole):
    assert cli.main(["check", str(whole), "--max-peak", f"{TRUE_PEAK}B"]) == 0
    assert cli.main(["check", str(whole), "--max-peak", f"{TRUE_PEAK - 1}B"]) == 3


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.97])
@pytest.mark.parametrize("damage", [zeroed, cut, gone, doubled])
@pytest.mark.parametrize("name", FILES)
def test_what_is_damaged_passes_nothing_that_the_whole_run_fails(whole, tmp_path, name, damage, place):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    damage(path / "rank0" / name, place)

    # 1 and 2: it cannot be opened at all.
    assert cli.main(["check", str(path), "--max-peak", f"{TRUE_PEAK - 1}B"]) in (1, 2, 3)
