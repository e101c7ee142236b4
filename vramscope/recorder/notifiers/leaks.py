"""Reports certain leaks in the terminal while the training runs.

A short trace is analyzed by the flushing thread; a long one by a process of its own, which needs neither the
training's interpreter nor its memory: 10 million events take 10 s and 2 GB.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import IO, NamedTuple

from vramscope.model.codes import LeakCause
from vramscope.model.finding import Finding, Located
from vramscope.recorder.process import own_environment
from vramscope.units import as_sentence, format_bytes

# Nobody keeps the graph or a frame of every step on purpose, nor what a hook collects that was never removed.
# A list or a dict that grows may be a buffer that fills up: it is reported after it has grown for 60 steps.
_NEVER_MEANT = frozenset({
    LeakCause.RETAIN_GRAPH, LeakCause.LOSS_WITH_GRAPH, LeakCause.UNDETACHED_STATE,
    LeakCause.CREATE_GRAPH_CYCLE, LeakCause.SAVED_ON_CTX, LeakCause.TRACEBACK, LeakCause.HOOK,
})  # fmt: skip
_SURE_AFTER_STEPS = 60
_PAUSE = 20
"""The least pause after a check, as a multiple of its time."""
_MOST_WAIT_S = 10.0
"""The longest wait for the process at the ends of recorded blocks; a twentieth of their time is added."""


class FoundLeak(NamedTuple):
    """A leaking line of code."""

    found: Located
    sentence: str
    is_certain: bool
    """Whether it is reported while the program runs; others may end yet, and are reported at its end."""

    @property
    def place(self) -> tuple[str | None, int | None]:
        """The file and the line, which is reported once."""
        return self.found.finding.file, self.found.finding.line


class CheckLimits(NamedTuple):
    """What a check may cost the training."""

    in_thread_bytes: int = 1 << 20
    """Size of the events of a trace that a thread of the training analyzes: 20,000 to 330,000 events."""
    most_bytes: int = 32 << 20
    """Size of the events of the longest trace that is analyzed while the program runs: up to 10 million."""
    early_s: float = 2.0
    """Time in all of the checks at ends of recorded blocks that do not wait for the pause to pass."""
    process_s: float = 300.0
    """Time after which the process is ended."""


def is_soon_read(directory: Path) -> bool:
    """Whether the run is small enough to be read while its program goes on."""
    return events_bytes(directory) <= CheckLimits().most_bytes


class LeakNotifier:
    """Runs the leak analysis on the recording once capture has seen memory grow."""

    def __init__(self, limits: CheckLimits | None = None) -> None:
        self._limits = limits or CheckLimits()
        self._n_walks = 0
        self._next_s = self._pause_s = 0.0
        self._early_s = 0.0
        self._checked_bytes = -1
        self._process: _LeakSearch | None = None
        self._ended_s = perf_counter()
        self._wait_s = _MOST_WAIT_S
        self._reported: set[tuple[str | None, int | None]] = set()
        self._others: list[FoundLeak] = []

    def check(self, directory: Path, n_walks: int, *, is_end: bool = False) -> list[FoundLeak]:
        """Return each leaking line of code that was not reported before.

        *n_walks* is the number of searches for holders so far. Until the last search leads to a report, the
        check is repeated after pauses that double, and only if there are new events. The end of a block may
        check after half of the pause, and at any time until such checks have taken 2 s in all: most trainings
        are one block, and its end is the last moment for a report. It waits for the process: 10 s in all, and
        a twentieth of the blocks' time.
        """
        if is_end:
            began_s, self._ended_s = self._ended_s, perf_counter()
            self._wait_s = min(self._wait_s + (self._ended_s - began_s) / _PAUSE, _MOST_WAIT_S)
            self._replace_process(directory)
        if self._process is not None:
            return self._new(self._result(is_end=is_end), n_walks)
        is_due = self._is_due(is_end=is_end)
        is_early = is_end and not is_due and self._early_s < self._limits.early_s
        if n_walks == self._n_walks or not (is_due or is_early):
            return []
        n_bytes = events_bytes(directory)
        if n_bytes == self._checked_bytes:
            return []
        self._checked_bytes = n_bytes
        if n_bytes > self._limits.most_bytes:
            return []
        if n_bytes > self._limits.in_thread_bytes:
            self._process = _LeakSearch(directory, self._limits.process_s, is_awaited=is_end)
            return self._new(self._result(is_end=is_end), n_walks)
        began_s = perf_counter()
        found = found_leaks(directory)
        took_s = perf_counter() - began_s
        self._early_s += took_s if is_early else 0.0
        return self._new((found, took_s), n_walks)

    def rest(self, directory: Path) -> list[FoundLeak]:
        """Return each leak of a program that ends that was not certain before."""
        n_bytes = events_bytes(directory)
        if self._checked_bytes != n_bytes <= self._limits.in_thread_bytes:
            self._others = found_leaks(directory)
        return self._unreported(self._others)

    def close(self, *, is_forked: bool = False) -> None:
        """End the process, if one runs; in a forked child it is the parent's."""
        if self._process is not None:
            self._process.close(is_forked=is_forked)
            self._process = None

    def _replace_process(self, directory: Path) -> None:
        """Start the search again at the training's priority, where there is time to wait for it."""
        process = self._process
        if process is not None and not process.is_awaited and self._wait_s >= _MOST_WAIT_S / 2:
            process.close(is_forked=False)
            self._process = _LeakSearch(directory, self._limits.process_s, is_awaited=True)

    def _result(self, *, is_end: bool) -> "tuple[list[FoundLeak], float] | None":
        if self._process is None:
            return None
        began_s = perf_counter()
        result = self._process.leaks(self._wait_s if is_end else 0.0)
        self._wait_s = max(self._wait_s - (perf_counter() - began_s), 0.0) if is_end else self._wait_s
        return result

    def _is_due(self, *, is_end: bool) -> bool:
        # Half of a doubled pause is the pause before.
        return perf_counter() >= self._next_s - (self._pause_s / 2 if is_end else 0.0)

    def _new(self, result: "tuple[Iterable[FoundLeak], float] | None", n_walks: int) -> list[FoundLeak]:
        """Return what was not reported before; None is a check that has not ended."""
        if result is None:
            return []
        leaks, took_s = result
        self._process = None
        self._pause_s = max(2 * self._pause_s, _PAUSE * took_s)
        self._next_s = perf_counter() + self._pause_s
        self._others = list(leaks)
        found = self._unreported(leak for leak in self._others if leak.is_certain)
        if found:
            self._n_walks, self._pause_s = n_walks, 0.0
        return found

    def _unreported(self, leaks: Iterable[FoundLeak]) -> list[FoundLeak]:
        found = [leak for leak in leaks if leak.place not in self._reported]
        self._reported |= {leak.place for leak in found}
        return found


class _LeakSearch:
    """The process that analyzes a long trace; it prints the leaks as JSON.

    The training goes first, unless it waits for the process: beside six busy programs on two cores, a process
    of the lowest priority took more than 10 s for what takes 0.8 s alone, and the end of a training reported
    nothing.
    """

    def __init__(self, directory: Path, most_s: float, *, is_awaited: bool) -> None:
        self.is_awaited = is_awaited
        self._began_s = perf_counter()
        self._most_s = most_s
        niceness = "0" if is_awaited else "10"
        self._process: subprocess.Popen[str] = subprocess.Popen(  # noqa: S603 -- our own command
            [sys.executable, "-m", __name__, os.path.abspath(directory), niceness],  # noqa: PTH100
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=own_environment(),
        )
        self._output: IO[str] | None = self._process.stdout

    def leaks(self, wait_s: float) -> tuple[list[FoundLeak], float] | None:
        """Return the leaks and the time they took once the process has ended; None while it runs.

        A process that fails or runs for too long has found none.
        """
        try:
            # A few lines: they fit into the pipe, so the process ends without being read.
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            if perf_counter() - self._began_s < self._most_s:
                return None
            self._process.kill()
            self._process.wait()
        text = self._output.read() if self._process.returncode == 0 and self._output else ""
        self._close_output()
        found = [
            FoundLeak(Located(Finding(**fields), *of), *rest)
            for fields, of, *rest in json.loads(text or "[]")
        ]
        return found, perf_counter() - self._began_s

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()

    def close(self, *, is_forked: bool) -> None:
        if is_forked:
            # It is no child of this process.
            self._process.returncode = 0
        else:
            self._process.kill()
            self._process.wait()
        self._close_output()


def found_leaks(directory: Path) -> list[FoundLeak]:
    """Return the leaks of a trace; those are certain that nobody means, or that have grown for 60 steps.

    *directory* is that of the run, which may still be written.
    """
    from vramscope.analysis.leaks import findings, leaks
    from vramscope.loading import load

    found = []
    for recording in load(directory).recordings:
        result = leaks(recording)
        is_long = result.n_iterations >= _SURE_AFTER_STEPS
        for finding in findings(result):
            if finding.kind == "leak":
                place = f" ({Path(finding.file).name}:{finding.line})" if finding.file else ""
                so_far = format_bytes(finding.n_bytes or 0)
                sentence = f"{finding.claim}{place}; {so_far} so far. {as_sentence(finding.advice or '')}"
                is_certain = is_long or finding.cause in _NEVER_MEANT
                # What is said of it needs no evidence, whose values are of many types.
                of = Located(replace(finding, evidence={}), recording.process.rank, recording.device.index)
                found.append(FoundLeak(of, sentence, is_certain))
    return found


def events_bytes(directory: Path) -> int:
    """Return the size of the events of all ranks of a run, parts included."""
    from vramscope.store import summaries

    return sum(map(summaries.events_bytes, directory.glob("rank*")))


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(int(sys.argv[2]))
    rows = [
        (asdict(leak.found.finding), leak.found[1:], leak.sentence, leak.is_certain)
        for leak in found_leaks(Path(sys.argv[1]))
    ]
    sys.stdout.write(json.dumps(rows))
