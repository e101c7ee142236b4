"""Collects and ranks the findings of all analyses, in one ranking for terminal, JSON and pages."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vramscope.analysis import analyses
from vramscope.analysis.categories import assign
from vramscope.analysis.folding import fold
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.lines import modules_by_place
from vramscope.analysis.shared_results import shared_results
from vramscope.model.codes import FindingKind, LeakCause, Severity
from vramscope.model.finding import Finding, Located
from vramscope.model.recording import Recording

_GRAVITY = {severity.value: place for place, severity in enumerate(Severity)}
_NOT_AT_PEAK = (FindingKind.WORKSPACE_LEFT, FindingKind.EMPTY_CACHE)
"""Kinds whose bytes no edit takes from the peak: what is left at the end, and a sum over many calls."""
_NUMBERS = re.compile(r"\d[\d,.]*(?: ?[KMGTP]i?B| B| %)?")


class Shared(NamedTuple):
    """A finding that several recordings have in common."""

    finding: Finding
    """The finding of the recording with the most bytes, given by ``rank`` and ``device``."""
    rank: int
    device: int
    of: tuple[tuple[int, int], ...]
    """Rank and device of each recording, ascending."""
    differs: bool
    """Whether the claims of the others have other numbers."""


def findings(recording: Recording) -> tuple[Finding, ...]:
    """All findings of *recording*, ranked, each with the module of its line where it is known."""
    offered = analyses()
    with shared_results():
        found = collect(lambda name: offered[name].run(recording))
        return tuple(with_modules(recording, found))


def collect(ask: Callable[[str], Any]) -> list[Finding]:
    """All findings of one recording, ranked; *ask* returns the result of an analysis by its name.

    The peak is left out, because every view shows it anyway.
    """
    found: list[Finding] = []
    for analysis in analyses().values():
        if analysis.findings is not None and analysis.name != "peak":
            with shared_results():  # 30 MB of a million events, which no other analysis needs
                found += analysis.findings(ask(analysis.name))
    return ranked(_without_consequences(found))


def _without_consequences(found: list[Finding]) -> list[Finding]:
    """Leave out a peak of the evaluation that is a leak's: smaller batches keep as much."""
    leaks = [each for each in found if each.kind == FindingKind.LEAK]
    rate, lines = sum(each.bytes_per_step or 0 for each in leaks), {(each.file, each.line) for each in leaks}
    return [
        each
        for each in found
        if each.kind != FindingKind.EVALUATION_PEAK
        or (2 * rate < (each.n_bytes or 0) and (each.file, each.line) not in lines)
    ]


def with_modules(recording: Recording, findings: Sequence[Finding]) -> list[Finding]:
    """Add to *findings* the module of their line, or the common part of several modules' paths, if known."""
    lines = {(each.file, each.line): number for number, each in enumerate(findings) if _lacks_module(each)}
    if not lines:
        return list(findings)
    folded = fold(recording.stacks)
    number = np.full(len(folded.stacks), -1)
    for node in np.unique(folded.of[folded.of > 0]).tolist():
        frame = folded.stacks.frame(node)
        number[node] = lines.get((frame.file, frame.line), -1)
    allocations = lifetimes(recording)
    group = number[folded.of][allocations.stack_id]
    modules = modules_by_place(recording, allocations, assign(recording, allocations), group)
    # A number of modules says nothing of these bytes, which may be of none of them.
    modules = {at: module for at, module in modules.items() if not module.endswith(" modules")}
    return [
        replace(each, module=modules.get(lines[each.file, each.line]) or None)
        if _lacks_module(each)
        else each
        for each in findings
    ]


def _lacks_module(found: Finding) -> bool:
    """Whether the module of its line says something: a line that calls backward, or a hook, runs in none."""
    is_elsewhere = found.evidence.get("in_backward") or found.cause == LeakCause.HOOK
    return bool(found.file) and not found.module and not is_elsewhere


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first: errors, warnings, the rest; within each the most bytes at the peak first."""
    return sorted(findings, key=_gravity)


def located(found: Iterable[tuple[Recording, Sequence[Finding]]]) -> list[Located]:
    """The findings of several recordings in one ranking."""
    rows = [
        Located(finding, recording.process.rank, recording.device.index)
        for recording, findings in found
        for finding in findings
    ]
    return ranked_rows(rows)


def ranked_rows(rows: Iterable[Located]) -> list[Located]:
    """The same rows in the order of every view."""
    return sorted(rows, key=lambda row: (*_gravity(row.finding), row.rank, row.device))


def shared(rows: Sequence[Located]) -> list[Shared]:
    """Merge findings that differ only in their numbers into one, with its ranks and devices."""
    groups: dict[Any, list[Located]] = {}
    for row in rows:
        groups.setdefault(_sameness(row.finding), []).append(row)
    # Ranked rows stay ranked: the first of a group is its most severe.
    return [
        Shared(
            *group[0],
            of=tuple(sorted({(row.rank, row.device) for row in group})),
            differs=len({row.finding.claim for row in group}) > 1,
        )
        for group in groups.values()
    ]


def finding_as_json(located: Located) -> dict[str, Any]:
    """Return the fields of a finding that every view shares."""
    finding = located.finding
    where = {"file": finding.file, "line": finding.line, "function": finding.function}
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "rank": located.rank,
        "device": located.device,
        "claim": finding.claim,
        "where": where if finding.file is not None else None,
        "module": finding.module,
        "cause": finding.cause,
        "holder": finding.holder,
        "bytes": finding.n_bytes,
        "bytes_per_step": finding.bytes_per_step,
        "advice": finding.advice,
        "evidence": dict(finding.evidence),
    }


def _gravity(finding: Finding) -> tuple[int, int]:
    n_bytes = 0 if finding.kind in _NOT_AT_PEAK else finding.n_bytes or 0
    return _GRAVITY.get(finding.severity, len(_GRAVITY)), -n_bytes


def _sameness(finding: Finding) -> tuple[Any, ...]:
    claim = _NUMBERS.sub("#", finding.claim)
    where = finding.file, finding.line, finding.function
    return finding.kind, finding.severity, finding.cause, finding.holder, where, claim


def ranks_words(pairs: Sequence[tuple[int, int]]) -> str:
    """``rank 3``, ``ranks 0-63``, ``ranks 0-2, 5, device 1``; devices are named where they are not all 0."""
    ranks = sorted({rank for rank, _ in pairs})
    devices = sorted({device for _, device in pairs})
    words = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_ranges(ranks)}"
    # On one node every rank has a device of its own, so the rank is sufficient.
    if len(devices) == 1 and devices != [0]:
        return f"{words}, device {devices[0]}"
    if len(ranks) < len(pairs):
        return f"{words}, devices {_ranges(devices)}"
    return words


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
