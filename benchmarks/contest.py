"""The programs that read snapshots, and how each of them is run.

Every reader opens the file in a process of its own. The measures are CPU time (user and system, including
children) and peak memory. Peers come from PyPI into environments of their own under ``.cache/peers``, or are
left out.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import growth

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
LIMIT_S = 900
FLOOR = "pickle.load"
RIVAL = "torch trace_plot"
OPEN, PEAK, REPORT = "vramscope: open", "vramscope: open, its peak", "vramscope report"
ALL = f"vramscope: open, all {len(growth.ANALYSES)} analyses"
WARM = ", from its cache"
FLOOR_ALONE, OPEN_ALONE = "pickle.load, the call alone", "vramscope: open, the call alone"
ALL_ALONE = f"vramscope: all {len(growth.ANALYSES)} analyses alone, of the converted trace"
SLOW_S = 5
"""Seconds above which a reader runs in the first round only: a short disturbance is small beside that."""
SETTLED_S = 2.5
"""Seconds to wait: vramscope keeps no conversion of a file that has just changed."""
PEERS = {"ptmem": "ptmem", "pt-snap-cli": "pt-snap"}
"""Distribution and command of each peer (stormlog reads only its own recordings, not torch's snapshots)."""

_PRINTED = "stdout"

_PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
_OPEN = "import sys, vramscope; run = vramscope.load(sys.argv[1])"
_PEAK = "; [recording.peak() for recording in run.recordings]"
_ALL = f"""
from vramscope.analysis.shared_results import shared_results
with shared_results():
    for recording in run.recordings:
        for name in {growth.ANALYSES}:
            getattr(recording, name)()
"""
_ALONE = """
import sys, time
{first}
start = time.process_time()
{call}
print(time.process_time() - start)
"""
"""Prints the CPU seconds of one call, or of a few lines."""


@dataclass(slots=True)
class Reader:
    """One way to read the file. ``FILE`` and ``OUT`` (an empty folder) in the command are replaced.

    ``FILE`` lies in a folder of its own each time: some keep a cache beside it.
    """

    name: str
    command: Sequence[str]
    is_warm: bool = False
    """Whether it ran on the same file before, and may use a cache."""
    is_alone: bool = False
    """Whether it prints the CPU seconds that count, without those of its start."""
    cpu_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    failure: str = ""

    def run(self, file: Path) -> None:
        """Run it once more, unless it failed before, or is so slow that one run is enough."""
        if self.failure or (self.cpu_s and self.cpu_s[0] > SLOW_S):
            return
        with tempfile.TemporaryDirectory(dir=file.parent) as out:
            own = Path(out) / "snapshot.pickle"
            own.hardlink_to(file.resolve())
            if "vramscope" in self.name:
                time.sleep(SETTLED_S)
            command = [part.replace("FILE", str(own)).replace("OUT", out) for part in self.command]
            if self.is_warm:
                _waited(command, Path(out))
            status, usage = _waited(command, Path(out))
            printed = (Path(out) / _PRINTED).read_text()
        if status:
            self.failure = f"failed ({status})"
            return
        self.cpu_s.append(float(printed) if self.is_alone else usage.ru_utime + usage.ru_stime)
        self.memory_mb.append(usage.ru_maxrss / 1024)

    @property
    def cpu(self) -> float:
        """The median of the CPU seconds."""
        return statistics.median(self.cpu_s)

    @property
    def memory(self) -> float:
        """The median of the peak memory in MB."""
        return statistics.median(self.memory_mb)


def _waited(command: Sequence[str], home: Path) -> tuple[int, Any]:
    """Return exit status and resource usage of a process and its children.

    The process has a home folder of its own, so that it finds no cache.
    """
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NO_COLOR": "1"}
    # Peers come compiled by pip; ours lies here as source.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("VRAMSCOPE_CACHE", None)
    with (home / _PRINTED).open("wb") as printed:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.DEVNULL,
        )
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def readers(peers: Mapping[str, Path]) -> list[Reader]:
    """Return every reader that can run here."""
    python = sys.executable
    found = [
        Reader(FLOOR, [python, "-c", _PICKLE, "FILE"]),
        Reader("pickle.load, gc off", [python, "-c", f"import gc; gc.disable(); {_PICKLE}", "FILE"]),
        Reader(OPEN, [python, "-c", _OPEN, "FILE"]),
        Reader(PEAK, [python, "-c", _OPEN + _PEAK, "FILE"]),
        Reader(ALL, [python, "-c", f"{_OPEN}\n{_ALL}", "FILE"]),
        Reader(f"{OPEN}{WARM}", [python, "-c", _OPEN, "FILE"], is_warm=True),
        Reader(f"{PEAK}{WARM}", [python, "-c", _OPEN + _PEAK, "FILE"], is_warm=True),
        Reader(f"{ALL}{WARM}", [python, "-c", f"{_OPEN}\n{_ALL}", "FILE"], is_warm=True),
        Reader(REPORT, [python, "-m", "vramscope", "report", "FILE", "--json"]),
        Reader(f"{REPORT}{WARM}", [python, "-m", "vramscope", "report", "FILE", "--json"], is_warm=True),
        Reader(
            FLOOR_ALONE,
            [python, "-c", _alone("import pickle", "found = pickle.load(open(sys.argv[1], 'rb'))"), "FILE"],
            is_alone=True,
        ),
        Reader(
            OPEN_ALONE,
            [python, "-c", _alone("from vramscope import load", "found = load(sys.argv[1])"), "FILE"],
            is_alone=True,
        ),
        Reader(
            ALL_ALONE,
            [python, "-c", _alone(_OPEN, _ALL), "FILE"],
            is_warm=True,
            is_alone=True,
        ),
    ]
    if find_spec("torch"):
        viz = [python, "-m", "torch.cuda._memory_viz"]
        found.append(Reader(RIVAL, [*viz, "trace_plot", "FILE", "-o", "OUT/plot.html"]))
        found.append(Reader("torch stats", [*viz, "stats", "FILE"]))
    if "ptmem" in peers:
        command = [str(peers["ptmem"]), "--summary", "FILE"]
        found.append(Reader("ptmem --summary", command))
        found.append(Reader("ptmem --summary, from its cache", command, is_warm=True))
    if "pt-snap-cli" in peers:
        command = [str(peers["pt-snap-cli"]), "import", "FILE", "-o", "OUT", "--no-focus"]
        found.append(Reader("pt-snap import", command))
    return found


def _alone(first: str, call: str) -> str:
    return _ALONE.format(first=first, call=call)


def peers() -> dict[str, Path]:
    """Return the commands of the peers that could be installed, each in its own environment."""
    found = {}
    for distribution, command in PEERS.items():
        place = CACHE / "peers" / distribution
        if not (place / "bin" / command).exists():
            _install(distribution, place)
        if (place / "bin" / command).exists():
            found[distribution] = place / "bin" / command
    return found


def _install(distribution: str, place: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=False)
    pip = [str(place / "bin" / "pip"), "install", "--quiet", distribution]
    subprocess.run(pip, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
