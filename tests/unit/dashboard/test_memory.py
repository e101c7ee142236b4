"""What was let go goes back to the system, also after small arrays were freed before."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MEASURED = """
    import numpy as np
    from pathlib import Path
    from vramscope.dashboard.server.malloc_tuning import give_back, keeping, trim

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    give_back()
    for _ in range(3):
        np.ones(2 << 20, "u1")
    before = resident()
    many = [np.ones(1 << 20, "u1") for _ in range(64)]
    kept = many[-1]
    most = resident()
    del many
    print(most - before > 60 << 20, resident() - before < 4 << 20)
"""
KEEPING = """
    with keeping():
        small = [np.ones(1 << 20, "u1") for _ in range(64)]
        kept = small[-1]
        del small
        while_reading = resident()
    print(while_reading - before > 60 << 20, resident() - before < 4 << 20)
"""
BETWEEN_REQUESTS = """
    from time import monotonic, sleep
    from vramscope.dashboard.server.malloc_tuning import keep_between_requests

    keep_between_requests()
    small = [np.ones(1 << 20, "u1") for _ in range(64)]
    kept = small[-1]
    del small
    between = resident()
    last_s = monotonic() + 60
    while resident() - before > 4 << 20 and monotonic() < last_s:
        sleep(0.1)
    print(between - before > 60 << 20, resident() - before < 4 << 20)
"""
HUGE_PAGES = """
    from pathlib import Path
    from vramscope.dashboard.server.malloc_tuning import give_back

    give_back()
    lines = Path("/proc/self/status").read_text().splitlines()
    print(*(line.split()[1] for line in lines if line.startswith("THP_enabled")))
"""
CLOSED = """
    before = resident()
    with keeping():
        columns = [np.ones(40 << 20, "u1") for _ in range(3)]
        others = [np.ones(1 << 16, "u1") for _ in range(16)]
    while_open = resident()
    del columns
    trim()
    print(while_open - before > 110 << 20, resident() - before < 8 << 20)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_memory_of_arrays_goes_back_though_a_later_one_lives_on() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEASURED)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert output.split() == ["True", "True"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_memory_is_kept_while_a_file_is_read_and_goes_back_then() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEASURED) + textwrap.dedent(KEEPING)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert output.split() == ["True"] * 4


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_memory_is_kept_between_requests_and_goes_back_when_none_comes() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEASURED) + textwrap.dedent(BETWEEN_REQUESTS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert output.split() == ["True"] * 4


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_memory_of_a_file_goes_back_when_it_is_closed_though_other_files_are_open() -> None:
    command = [sys.executable, "-c", textwrap.dedent(MEASURED) + textwrap.dedent(CLOSED)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert output.split() == ["True"] * 4


@pytest.mark.skipif(
    not Path("/proc/self/status").exists() or "THP_enabled" not in Path("/proc/self/status").read_text(),
    reason="the system does not tell",
)
def test_a_server_has_no_huge_pages() -> None:
    command = [sys.executable, "-c", textwrap.dedent(HUGE_PAGES)]

    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["0"]
