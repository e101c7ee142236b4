"""Markers for tests: ``@pytest.mark.vram_limit("2 GiB")`` and ``@pytest.mark.vram_no_leak(steps=20)``.

``@pytest.mark.vram_limit(baseline="vram.json")`` compares with a committed file; ``--vram-update`` writes it.

Marked tests are recorded on CUDA if there is a GPU, else on the simulated device. If no test is marked the
plugin costs nothing: it imports neither torch nor NumPy.
"""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from vramscope.errors import FormatError
from vramscope.model.codes import FindingKind
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.model.finding import Finding
    from vramscope.model.recording import Recording

_MARKERS = (
    (
        "vram_limit(size, baseline=, tolerance=1): fail where the test has more allocated at once, beyond "
        "what was there before, than the size, or than the JSON file (beside the test) has for it, by percent"
    ),
    (
        "vram_no_leak(steps=20): fail where memory grows from step to step: of the loop in the test, or from "
        "one call of the test to the next where it has none; fixtures are made once"
    ),
)
_SCHEMA = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes baselines."""
    words = (
        "write the peaks of tests marked with vram_limit(baseline=…) into their files, instead of comparing"
    )
    parser.getgroup("vramscope").addoption("--vram-update", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers with pytest."""
    for marker in _MARKERS:
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
        _check_limits(pyfuncitem, recordings, *limit.args, **limit.kwargs)
    if no_leak is not None:
        _check_leaks(recordings, call, _steps(*no_leak.args, **no_leak.kwargs))
    return True


def _check_limits(
    item: pytest.Function,
    recordings: "tuple[Recording, ...]",
    size: str | int | None = None,
    *,
    baseline: str | None = None,
    tolerance: float = 1,
) -> None:
    if size is None and baseline is None:
        raise pytest.UsageError('vram_limit: a size, or baseline="vram.json"')
    if size is not None:
        _check_limit(recordings, _size(size))
    if baseline is not None:
        _check_baseline(item, recordings, item.path.parent / baseline, tolerance)


def _check_baseline(
    item: pytest.Function, recordings: "tuple[Recording, ...]", file: Path, tolerance: float
) -> None:

    fullest = max(recordings, key=_own_peak)
    # The file lies beside the test, so its own path is no part of the name.
    most, source, name = _own_peak(fullest), fullest.source, item.nodeid.rpartition("/")[2]
    try:
        if item.config.getoption("vram_update"):
            keep_peak(file, name, source, most)
            return
        known = known_peak(file, name, source)
    except FormatError as error:
        raise pytest.UsageError(str(error)) from None
    if known is None:
        pytest.fail(f"{file.name} has no peak of this test ({source}): pytest --vram-update", pytrace=False)
    if most > known * (1 + tolerance / 100):
        grown = f"{format_bytes(most)} allocated at once, {format_bytes(known)} in {file.name}"
        advice = "pytest --vram-update keeps it, if it is meant"
        pytest.fail(f"{grown}; most of it by:\n{_largest(fullest)}\n{advice}", pytrace=False)


def _size(size: str | int) -> int:
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
    from vramscope.loading import load
    from vramscope.recorder import record

    with TemporaryDirectory(prefix="vramscope-") as directory:
        path = Path(directory) / "run"
        with record(path, quiet=True) as recorder:
            for _ in range(n_calls):
                call()
                if n_calls > 1:
                    recorder.step()
        return load(recorder.directory).recordings


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


def known_peak(file: Path, test: str, source: str) -> int | None:
    """The committed peak of a test in bytes, on CUDA or the simulated device; None where there is none.

    Raises FormatError if the file is no baseline.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    peak = _tests(file, text).get(test, {}).get(source)
    return None if peak is None else int(peak)


def keep_peak(file: Path, test: str, source: str, n_bytes: int) -> None:
    """Write the peak of a test into the file; tests of several workers may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        tests = _tests(file, opened.read())
        tests.setdefault(test, {})[source] = n_bytes
        opened.truncate(0)
        opened.write(json.dumps({"schema": _SCHEMA, "tests": tests}, indent=2, sort_keys=True) + "\n")


def _tests(file: Path, text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        content = json.loads(text)
        if content["schema"] != _SCHEMA:
            raise FormatError(
                f"{file}: a baseline of schema {content['schema']}: this version reads {_SCHEMA}"
            )
        return dict(content["tests"])
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"{file}: no baseline; delete it, and write it again with --vram-update") from None
