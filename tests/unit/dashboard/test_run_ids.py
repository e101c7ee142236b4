"""The id of a run opens that run, and no other that happens to share it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from vramscope.dashboard import runs
from vramscope.dashboard.runs import Catalogue, Library, Pace, run_id


class Found(Library):
    """Runs that a test names."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def discover(self, _: Path) -> Sequence[Path]:
        return self._paths


@pytest.fixture
def one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids so short that many are shared."""
    whole = runs.run_id
    monkeypatch.setattr(runs, "run_id", lambda path, n_bytes=1: whole(path, n_bytes))


def test_an_id_has_64_bits_and_follows_from_the_path_alone() -> None:
    assert run_id(Path("/a/run")) == run_id(Path("/a/b/../run"))
    assert len(run_id(Path("/a/run")).rpartition("-")[2]) * 4 == 64


@pytest.mark.usefixtures("one_byte")
def test_runs_that_would_share_an_id_have_longer_ones_in_any_order() -> None:
    paths = [Path(f"/jobs/{number}/run") for number in range(300)]
    listed = Catalogue(Path("/jobs"), Found(paths), Pace()).paths()
    turned = Catalogue(Path("/jobs"), Found(paths[::-1]), Pace()).paths()

    assert sorted(listed.values()) == sorted(paths)
    assert listed == turned


def test_an_old_short_link_is_told(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="earlier vramscope"):
        Catalogue(tmp_path, Found([]), Pace()).path("run-f88016")
