"""The token of a user survives a restart, and is not taken from a file that others could have read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.runs import run_id
from vramscope.dashboard.server.kept_token import kept_token


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "vramscope" / "token"


def test_a_restart_finds_the_same_token_in_a_private_file(file: Path) -> None:
    first = kept_token()

    assert kept_token() == first == file.read_text()
    assert len(first) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("spoiled", ["readable", "link", "cut"])
def test_a_file_that_others_could_read_or_write_is_replaced(file: Path, spoiled: str) -> None:
    first = kept_token()
    if spoiled == "readable":
        file.chmod(0o644)
    elif spoiled == "link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to(file.with_name("elsewhere"))
    else:
        file.write_text(first[:5])
    second = kept_token()

    assert second != first
    assert kept_token() == second
    assert not file.is_symlink()


def test_without_a_place_for_the_file_every_start_has_a_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    assert len({kept_token(), kept_token()}) == 2


def test_a_run_has_the_same_id_whichever_folder_is_served(
    run_at: Callable[..., Path], tmp_path: Path
) -> None:
    path = run_at("project/gpt")
    roots = (tmp_path, tmp_path / "project", path, Path(os.path.relpath(path)))
    served = [Data(root).runs.paths() for root in roots]

    assert [list(each) for each in served] == [[run_id(path)]] * 4
