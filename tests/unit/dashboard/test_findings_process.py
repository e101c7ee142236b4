"""Findings of a long run that grows are searched in another process: the same ones."""

import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.answers import findings
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.pages.overview import opening
from vramscope.dashboard.queries.findings_process import FindingsProcess, LatestFindings
from vramscope.dashboard.runs import Pace

from vramscope.analysis import analyses
from vramscope.analysis.findings import collect
from vramscope.loading import load
from vramscope.model.finding import Finding

MIB = 1 << 20


@pytest.fixture
def leaking_program(tmp_path: Path, open_program: Any) -> Any:
    """A run that grows by a block at each step."""
    program = open_program(tmp_path / "live")
    program.begin(reserved=512 * MIB)
    for _ in range(40):
        program.malloc(MIB, program.stack("keep", 12))
        program.step()
    program.flush()
    return program


@pytest.fixture
def leaking(leaking_program: Any, tmp_path: Path) -> Path:  # noqa: ARG001
    """The folder of that run."""
    return tmp_path


def opened(root: Path, **pace: Any) -> tuple[Data, View]:
    data = Data(root, pace=Pace(**pace))
    (name,) = data.runs.paths()
    return data, data.view(Address(run=name))


def truth(root: Path) -> tuple[list[Finding], int]:
    """What a reader of the whole run finds, and the number of events."""
    recording = load(root / "live").recordings[0]
    offered = analyses()
    return collect(lambda name: offered[name].run(recording)), len(recording.trace)


def awaited(data: Data, view: View) -> LatestFindings:
    """The findings once there are some: no page waits for them."""
    end_s = monotonic() + 60
    while not (found := findings(data, view)).instant and monotonic() < end_s:
        sleep(0.05)
    return found


def test_the_process_finds_what_the_server_finds(leaking: Path) -> None:
    here, apart = opened(leaking), opened(leaking, events_searched_here=0)
    expected = findings(*here)

    assert expected.findings
    assert FindingsProcess.path(*here) is None
    assert FindingsProcess.path(*apart) == leaking / "live"
    assert findings(*apart).instant in (0, expected.instant)
    assert awaited(*apart) == expected == truth(leaking)


def test_a_run_that_grows_is_searched_by_one_process_until_it_ends(
    leaking_program: Any, tmp_path: Path
) -> None:
    data, view = opened(tmp_path, events_searched_here=0)
    search = FindingsProcess(tmp_path / "live", view.recording)
    assert search.search() == truth(tmp_path)
    for n_steps in (1, 7, 30):
        for _ in range(n_steps):
            leaking_program.malloc(2 * MIB, leaking_program.stack("keep", 12))
            leaking_program.malloc(MIB, leaking_program.stack("more", 14))
            leaking_program.step()
        leaking_program.flush()
        found = search.search()
        assert found == truth(tmp_path)
    assert len(found.findings) > 0
    assert data.view(Address(run=view.run_id)).is_live


def test_without_the_process_the_server_searches(leaking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = findings(*opened(leaking))
    for program in ("/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        data, view = opened(leaking, events_searched_here=0)

        assert FindingsProcess(leaking / "live", view.recording).search() is None
        assert awaited(data, view) == expected


def test_the_page_says_up_to_when_a_growing_run_is_searched(leaking_program: Any, tmp_path: Path) -> None:
    data, view = opened(tmp_path, events_searched_here=0, refresh_s=0.0, share=1e9)

    def shown(view: View) -> str:
        return str(opening(data, view))

    assert "Searching for leaks" in shown(view)
    latest = awaited(data, view)
    assert "the search goes on" not in shown(view)
    leaking_program.step()
    leaking_program.flush()
    data.refresh(view.run_id)
    later = data.view(Address(run=view.run_id))

    assert latest.instant < len(later.recording.trace)
    # On a machine that is slow enough, the next search has ended already.
    assert "the search goes on" in shown(later) or findings(data, later).instant > latest.instant
