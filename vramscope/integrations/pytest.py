"""Markers for tests: ``@pytest.mark.vram_limit("2 GiB")`` and ``@pytest.mark.vram_no_leak(steps=20)``.

Marked tests are recorded on CUDA if there is a GPU, else on the simulated device. If no test is marked the
plugin costs nothing: it imports neither torch nor NumPy.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from vramscope.model.codes import FindingKind
from vramscope.package_data import rows
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.model.finding import Finding
    from vramscope.model.recording import Recording

_MARKERS = rows(__file__, "_measurements.tsv", "marker")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers with pytest."""
    for (marker,) in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Record the call of a marked test; other tests run as usual."""
    limit = pyfuncitem.get_closest_marker("vram_limit")
    no_leak = pyfuncitem.get_closest_marker("vram_no_leak")
    if limit is None and no_leak is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    def call() -> None:
        pyfuncitem.obj(**arguments)

    recordings = _recorded(call, 1)
    if limit is not None:
        _check_limit(recordings, _size(*limit.args, **limit.kwargs))
    if no_leak is not None:
        _check_leaks(recordings, call, _steps(*no_leak.args, **no_leak.kwargs))
    return True


def _size(size: str | int = "") -> int:
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise pytest.UsageError(f"vram_limit: {error}") from None


def _steps(steps: int = 20) -> int:
    from vramscope.analysis.leaks.growth import LEAST_LEVELS

    if steps < LEAST_LEVELS:
        raise pytest.UsageError(f"vram_no_leak(steps={steps}): it takes {LEAST_LEVELS} to say anything")
    return steps


def _recorded(call: Callable[[], None], n_calls: int) -> "tuple[Recording, ...]":
    from vramscope.recorder import record

    with TemporaryDirectory(prefix="vramscope-") as directory:
        path = Path(directory) / "run"
        with record(path, quiet=True) as recorder:
            for _ in range(n_calls):
                call()
                if n_calls > 1:
                    recorder.step()
        return recorder.load().recordings


def _check_limit(recordings: "tuple[Recording, ...]", limit: int) -> None:
    for recording in recordings:
        most = _own_peak(recording)
        if most > limit:
            text = f"{format_bytes(most)} allocated at once, the limit is {format_bytes(limit)}"
            pytest.fail(f"{text}; most of it by:\n{_largest(recording)}", pytrace=False)
    _check_complete(recordings)


def _own_peak(recording: "Recording") -> int:
    """The peak in bytes of what the test itself allocated.

    Blocks from before the test belong to other tests, and may be freed while it runs.
    """
    import numpy as np

    found = recording.lifetimes()
    mine = found.rows(found.alloc_event >= 0)
    change = np.zeros(len(recording.trace) + 1, "i8")
    np.add.at(change, mine.alloc_event, mine.block_size)
    died = mine.free_event >= 0
    np.add.at(change, mine.free_event[died], -mine.block_size[died])
    return int(np.cumsum(change).max(initial=0))


def _largest(recording: "Recording") -> str:
    from vramscope.analysis.folding import bytes_by_line, fold

    held, folded = recording.by_stack(), fold(recording.stacks)
    found = bytes_by_line(folded, held.stack_id, held.bytes, held.count)
    rows = zip(found.n_bytes[:3].tolist(), found.folded_id[:3].tolist(), strict=True)
    frames = [(n_bytes, folded.stacks.frame(own) if own else None) for n_bytes, own in rows]
    return "\n".join(
        f"  {format_bytes(n_bytes)}  {'no stack recorded' if at is None else f'{at.file}:{at.line}'}"
        for n_bytes, at in frames
    )


def _check_leaks(recordings: "tuple[Recording, ...]", call: Callable[[], None], steps: int) -> None:
    from vramscope.analysis.leaks.growth import LEAST_LEVELS

    # A test without a loop counts as one step a call.
    if all(len(recording.steps) < LEAST_LEVELS for recording in recordings):
        recordings = _recorded(call, steps)
    found = [finding for recording in recordings for finding in _leaks(recording)]
    if found:
        pytest.fail("\n".join(map(_words, found)), pytrace=False)
    _check_complete(recordings)


def _check_complete(recordings: "tuple[Recording, ...]") -> None:
    """Fail a test whose recording lacks events: nothing can be said of it."""
    from vramscope.analysis.verdicts.missing import Part, missing_parts

    lacking = [each for recording in recordings for each in missing_parts(recording)]
    why = next((each.text for each in lacking if each.part is Part.EVENTS), "")
    if why:
        pytest.fail(f"not decided: {why}", pytrace=False)


def _leaks(recording: "Recording") -> "list[Finding]":
    from vramscope.analysis.leaks import findings

    return [finding for finding in findings(recording.leaks()) if finding.kind == FindingKind.LEAK]


def _words(finding: "Finding") -> str:
    where = f"\n  allocated at {finding.file}:{finding.line}" if finding.file else ""
    return f"{finding.claim}{where}\n  {finding.advice}"
