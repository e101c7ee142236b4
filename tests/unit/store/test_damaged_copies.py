"""Copies of real recordings, damaged as ``benchmarks/damage.py`` does: none is shown as if it were whole."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
N_COPIES = 75


@pytest.fixture(scope="module")
def damage(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(ROOT / "benchmarks" / "damage.py")


@pytest.fixture
def _a_hang_ends(damage: ModuleType) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, damage._too_long)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def recordings(damage: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = damage.make_recordings(tmp_path_factory.mktemp("recordings"))
    return found


@pytest.mark.usefixtures("_a_hang_ends")
@pytest.mark.parametrize("group", ["with checksums", "killed", "in parts"])
def test_no_damaged_copy_is_shown_as_whole(
    damage: ModuleType, recordings: dict[str, list[Path]], group: str
) -> None:
    n_copies = N_COPIES if group == "with checksums" else N_COPIES // 3
    found = list(damage.examine(recordings[group], 4, 0, n_copies))
    bad = [each for each in found if each[0] not in ("same", "refused", "noted")]

    assert bad == []
    # Damage was done, and seen.
    assert sum(each[0] != "same" for each in found) > n_copies / 2


def test_a_recording_that_is_written_again_is_the_same(
    damage: ModuleType, recordings: dict[str, list[Path]]
) -> None:
    """Else the damage would be done to something that nobody records."""
    for old, new in zip(recordings["before checksums"], recordings["with checksums"], strict=True):
        (one,), (other,) = (damage.vramscope.load(path).recordings for path in (old, new))
        for table in ("trace", "marks", "labels", "holders", "counters", "steps", "phases"):
            columns = zip(getattr(one, table).columns(), getattr(other, table).columns(), strict=True)
            for (name, here), (_, there) in columns:
                # Texts may have got other numbers.
                is_text = name in getattr(one, table).TEXT_COLUMNS
                assert is_text or here.tolist() == there.tolist(), (table, name)


def test_an_undamaged_copy_is_the_same(damage: ModuleType, recordings: dict[str, list[Path]]) -> None:
    (run, *_) = recordings["with checksums"]

    assert damage.look(run, damage.content(run)) == "same"


@pytest.mark.usefixtures("_a_hang_ends")
def test_the_benchmark_sees_a_silent_change_a_traceback_and_a_hang(
    damage: ModuleType, recordings: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, *_) = recordings["with checksums"]
    digest, notes = damage.content(run)
    assert damage.look(run, ("another", notes)) == "silent"

    monkeypatch.setattr(damage, "content", lambda _: 1 // 0)
    assert damage.look(run, (digest, notes)).startswith("traceback ZeroDivisionError")

    monkeypatch.setattr(damage, "content", lambda _: time.sleep(20))
    signal.alarm(1)
    assert damage.look(run, (digest, notes)) == "hang"
