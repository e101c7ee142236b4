"""Findings of a long run that grows are searched in another process: the same ones."""

import sys
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.address import Address
from vramscope.dashboard.data import Data, Pace, View
from vramscope.dashboard.queries.findings_process import findings_apart
from vramscope.dashboard.queries.headline import findings

MIB = 1 << 20


@pytest.fixture
def leaking(tmp_path: Path, open_program: Any) -> Path:
    """A run that grows by a block at each step."""
    program = open_program(tmp_path / "live")
    program.begin(reserved=512 * MIB)
    for _ in range(40):
        program.malloc(MIB, program.stack("keep", 12))
        program.step()
    program.flush()
    return tmp_path


def opened(root: Path, **pace: Any) -> tuple[Data, View]:
    data = Data(root, pace=Pace(**pace))
    (name,) = data.paths()
    return data, data.view(Address(run=name))


def test_the_process_finds_what_the_server_finds(leaking: Path) -> None:
    here, apart = opened(leaking), opened(leaking, events_searched_here=0)
    expected = findings(*here)

    assert expected.findings
    assert findings_apart(*here) is None
    assert findings_apart(*apart) == (expected.findings, expected.instant)
    assert findings(*apart) == expected


def test_without_the_process_the_server_searches(leaking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = findings(*opened(leaking))
    for program in ("/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        data, view = opened(leaking, events_searched_here=0)

        assert findings_apart(data, view) is None
        assert findings(data, view) == expected
