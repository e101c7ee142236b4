"""Reports certain leaks in the terminal while the training runs."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from vramscope.model.codes import LeakCause
from vramscope.units import format_bytes

# Nobody keeps the graph or a frame of every step on purpose, nor what a hook collects that was never removed.
# A list or a dict that grows may be a buffer that fills up: it is reported after it has grown for 60 steps.
_NEVER_MEANT = frozenset(
    {
        LeakCause.RETAIN_GRAPH,
        LeakCause.LOSS_WITH_GRAPH,
        LeakCause.UNDETACHED_STATE,
        LeakCause.CREATE_GRAPH_CYCLE,
        LeakCause.SAVED_ON_CTX,
        LeakCause.TRACEBACK,
        LeakCause.HOOK,
    }
)
_SURE_AFTER_STEPS = 60
# Reading takes a second of the training's time per million events of 60 bytes each.
_MOST_BYTES = 100 << 20
_PAUSE = 20


def is_soon_read(directory: Path) -> bool:
    """Whether the run is small enough to be read while its program goes on."""
    return sum(file.stat().st_size for file in directory.glob("rank*/events-*")) <= _MOST_BYTES


class LeakNotifier:
    """Runs the leak analysis on the recording once capture has seen memory grow."""

    def __init__(self) -> None:
        self._n_walks = 0
        self._next_s = 0.0
        self._reported: set[tuple[str | None, int | None]] = set()

    def check(self, directory: Path, n_walks: int, *, is_end: bool = False) -> list[str]:
        """Return one sentence for each leaking line of code that was not reported before.

        *n_walks* is the number of searches for holders so far. Until the last search leads to a report, at
        most a twentieth of the time is spent on this check.
        """
        now = perf_counter()
        if n_walks == self._n_walks or (now < self._next_s and not is_end):
            return []
        found = list(self._new(directory))
        self._next_s = perf_counter() + _PAUSE * (perf_counter() - now)
        if found:
            self._n_walks = n_walks
        return found

    def _new(self, directory: Path) -> Iterator[str]:
        if not is_soon_read(directory):
            return
        from vramscope.analysis.leaks import findings, leaks
        from vramscope.loading import load

        for recording in load(directory).recordings:
            result = leaks(recording)
            is_long = result.n_iterations >= _SURE_AFTER_STEPS
            for finding in findings(result):
                where = finding.file, finding.line
                is_sure = finding.kind == "leak" and (is_long or finding.cause in _NEVER_MEANT)
                if is_sure and where not in self._reported:
                    self._reported.add(where)
                    place = f" ({Path(finding.file).name}:{finding.line})" if finding.file else ""
                    so_far = format_bytes(finding.n_bytes or 0)
                    yield f"{finding.claim}{place}; {so_far} so far. {finding.advice}"
