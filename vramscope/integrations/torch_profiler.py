"""One trace with the operators of ``torch.profiler`` and the memory of a recording."""

import gzip
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vramscope.errors import FormatError
from vramscope.export.live_stacks import title
from vramscope.export.tracks import Counter, Instants, Slices, tracks
from vramscope.model.recording import Recording, Run

if TYPE_CHECKING:
    from vramscope.recorder import Recorder

_FIRST_PROCESS = 1 << 30
"""The ids of our processes in a trace: Linux gives none above 2²²."""


def add_memory(trace: str | os.PathLike[str], run: Run, output: str | os.PathLike[str] | None = None) -> Path:
    """Add the memory of *run* to a trace that ``torch.profiler`` exported.

    Parameters
    ----------
    trace
        The file of ``export_chrome_trace``, also with ``.gz``.
    run
        The recording of the same program, from ``vramscope.load`` or ``recorder.load()``.
    output
        Where to write; None replaces *trace*. With ``.gz`` it is compressed.

    Returns
    -------
    Path
        The file, with counters of allocated and reserved bytes and of each category, steps, phases and
        findings, in the time that was profiled.

    Raises
    ------
    FormatError
        If *trace* is no trace of ``torch.profiler``.
    """
    source = Path(trace)
    target = source if output is None else Path(output)
    document = _read(source)
    base_ns = int(document.get("baseTimeNanoseconds", 0))
    profiled = _extent_ns(document["traceEvents"], base_ns)
    for number, recording in enumerate(run.recordings):
        document["traceEvents"] += _TraceRows(_FIRST_PROCESS + number, base_ns, profiled).of(recording)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document).encode()
    target.write_bytes(gzip.compress(text, 6) if target.suffix == ".gz" else text)
    return target


def trace_handler(recorder: "Recorder", directory: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Return the handler that writes traces with both.

    Use it as ``torch.profiler.profile(on_trace_ready=trace_handler(recorder, "traces/both"))``.

    Parameters
    ----------
    recorder
        What ``vramscope.record`` returned; it records around the profiler.
    directory
        The folder of the traces, ``step<n>.json.gz`` each.

    Returns
    -------
    callable
        Takes the profiler. If the memory cannot be added there is a warning, and the profiler's own trace.
    """

    def write(profiler: Any) -> None:
        target = Path(directory) / f"step{profiler.step_num}.json.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(target))
        try:
            recorder.flush()
            add_memory(target, recorder.load())
        # The training goes on with the profiler's own trace, whatever fails here.
        except Exception as error:  # noqa: BLE001
            message = f"vramscope adds no memory to {target}: {type(error).__name__}: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    return write


def _read(trace: Path) -> dict[str, Any]:
    content = trace.read_bytes()
    try:
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (ValueError, OSError, EOFError) as error:
        raise FormatError(f"{trace}: no trace of torch.profiler: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise FormatError(f"{trace}: no trace of torch.profiler: it has no list traceEvents")
    return document


def _extent_ns(rows: list[dict[str, Any]], base_ns: int) -> tuple[int, int]:
    """Return the Unix times of the first and the last thing in a trace, without its metadata."""
    timed = [row for row in rows if row.get("ph") != "M" and "ts" in row]
    if not timed:
        raise FormatError("a trace of torch.profiler without any event: there is no time to add memory to")
    start = min(float(row["ts"]) for row in timed)
    end = max(float(row["ts"]) + float(row.get("dur", 0)) for row in timed)
    return base_ns + int(start * 1000), base_ns + int(end * 1000)


class _TraceRows:
    """The rows of one recording, as a process of its own below those of the profiler."""

    def __init__(self, process: int, base_ns: int, profiled: tuple[int, int]) -> None:
        self._process = process
        self._base_ns = base_ns
        self._profiled = profiled

    def of(self, recording: Recording) -> Iterator[dict[str, Any]]:
        """Yield every row; nothing for a recording without a clock, which has no place in time."""
        if not recording.trace.has_clock:
            return
        name = f"vramscope: {title(recording)}"
        yield {"ph": "M", "name": "process_name", "pid": self._process, "args": {"name": name}}
        for number, track in enumerate(tracks(recording)):
            yield from self._track(track, number)

    def _track(self, track: Counter | Slices | Instants, number: int) -> Iterator[dict[str, Any]]:
        if isinstance(track, Counter):
            yield from self._counter(track)
            return
        place = {"pid": self._process, "tid": number}
        found = list(self._slices(track) if isinstance(track, Slices) else self._instants(track))
        if found:
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}}
            yield from ({**row, **place} for row in found)

    def _counter(self, track: Counter) -> Iterator[dict[str, Any]]:
        start, end = self._profiled
        # The level on entry holds since the beginning.
        first = max(int(np.searchsorted(track.time_ns, start, "right")) - 1, 0)
        stop = int(np.searchsorted(track.time_ns, end, "right"))
        times = np.maximum(track.time_ns[first:stop], start).tolist()
        for time_ns, n_bytes in zip(times, track.n_bytes[first:stop].tolist(), strict=True):
            row = {"ph": "C", "name": f"{track.name} (bytes)", "pid": self._process, "ts": self._ts(time_ns)}
            yield row | {"args": {"bytes": n_bytes}}

    def _slices(self, track: Slices) -> Iterator[dict[str, Any]]:
        start, end = self._profiled
        for start_ns, end_ns, label in track.spans:
            since, until = max(start_ns, start), min(end_ns, end)
            if since < until:
                yield {"ph": "X", "name": label, "ts": self._ts(since), "dur": (until - since) / 1000}

    def _instants(self, track: Instants) -> Iterator[dict[str, Any]]:
        start, end = self._profiled
        for time_ns, label in track.moments:
            if start <= time_ns:
                yield {"ph": "i", "s": "p", "name": label, "ts": self._ts(min(time_ns, end))}

    def _ts(self, time_ns: int) -> float:
        """Return a time as the trace has it: microseconds since its base."""
        return (time_ns - self._base_ns) / 1000
