"""Replays in a process of their own: the same results, and the process ends with whoever started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from vramscope.dashboard.data import Data, View
from vramscope.dashboard.queries.replay_process import ReplayProcess
from vramscope.dashboard.queries.settings_search import searches
from vramscope.dashboard.runs import Pace

from vramscope.allocator.settings import Settings
from vramscope.analysis.fit import Question, fit
from vramscope.analysis.what_if import RequestSequence, replay, request_sequence
from vramscope.errors import UsageError

LONGEST_S = 60
MIB = 1 << 20


@pytest.fixture
def apart() -> Any:
    made = ReplayProcess()
    yield made
    made.close()


@pytest.fixture
def program(view: View) -> RequestSequence:
    return request_sequence(view.recording)


def is_there(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody waits for is a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_search_in_a_process_has_the_answer_of_one_in_the_server(data: Data, view: View) -> None:
    data.pace = Pace(events_replayed_here=0)
    search = searches(data).of(view)
    assert search.wait(LONGEST_S)

    assert search.problem == ""
    assert search.fit == fit(view.recording, Question(has_own_target=False))


def test_each_replay_has_its_own_settings_and_capacity(
    apart: ReplayProcess, program: RequestSequence
) -> None:
    expandable = Settings(expandable_segments=True)
    for settings in (program.settings, expandable):
        for capacity_bytes in (None, 100 * MIB, 1 << 40):
            found = apart.replay(program, settings, capacity_bytes, capacity_bytes)

            assert found == replay(program, settings, capacity_bytes, capacity_bytes)
    assert apart.replay(program, expandable, None, None).n_mappings > 0


def test_an_impossible_capacity_is_refused_in_the_same_words(
    apart: ReplayProcess, program: RequestSequence
) -> None:
    with pytest.raises(UsageError, match="a capacity of 0 bytes"):
        apart.replay(program, program.settings, 0, None)
    assert apart.replay(program, program.settings, None, None).fits


def test_without_the_process_the_server_replays(
    apart: ReplayProcess, program: RequestSequence, monkeypatch: Any
) -> None:
    expected = replay(program, program.settings, None, None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert apart.replay(program, program.settings, None, None) == expected

    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert apart.replay(program, program.settings, None, None) == expected


STARTS_ONE = """
import sys
import numpy as np
from vramscope.allocator.settings import Settings
from vramscope.analysis.what_if import RequestSequence
from vramscope.dashboard.queries.replay_process import ReplayProcess

n = int(sys.argv[1])
none = np.zeros(n, "i8")
program = RequestSequence(none, np.arange(n), none, none + 512, none, none, Settings())
apart = ReplayProcess()
apart.replay(RequestSequence(*[none[:0]] * 6, Settings()), Settings(), None, None)
print(apart._process.pid, flush=True)
apart.replay(program, Settings(), None, None)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_process_ends_with_the_server_in_the_middle_of_a_replay(how: int, started: Any) -> None:
    command = [sys.executable, "-c", STARTS_ONE, "1000000"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        pid = int(server.stdout.readline())
        assert is_there(pid)
        server.send_signal(how)
        server.wait(LONGEST_S)

        last_s = monotonic() + LONGEST_S
        while is_there(pid):
            assert monotonic() < last_s
            sleep(0.02)


def test_after_the_search_its_process_is_gone(data: Data, view: View) -> None:
    data.pace = Pace(events_replayed_here=0)
    search = searches(data).of(view)
    assert search.wait(LONGEST_S)

    below = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    ).stdout
    assert "replay_process" not in below
