"""Memory that grows from step to step: where, by which mistake, and what holds it."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.commands._document import Block, Grid, Heading, Text, print_terminal
from vramscope.errors import UsageError
from vramscope.model.codes import FindingKind, Severity
from vramscope.units import format_bytes, parse_bytes, printable

if TYPE_CHECKING:
    from vramscope.analysis.leaks import Leaks
    from vramscope.analysis.verdicts import MemoryGrowth
    from vramscope.model.finding import Finding
    from vramscope.model.recording import Recording, Run

_IN_JSON = (FindingKind.LEAK, FindingKind.GROWING_BATCH, FindingKind.FILLING_BUFFER)


def run(args: Namespace) -> int:
    """Print the leaks of a run; return the exit code."""
    from vramscope.analysis.findings import with_modules
    from vramscope.analysis.leaks import findings, leaks
    from vramscope.analysis.summary import summarize
    from vramscope.analysis.verdicts import memory_growth
    from vramscope.analysis.verdicts.missing import missing_parts
    from vramscope.commands._report_json import as_json, growth_as_json
    from vramscope.loading import load

    try:
        least = parse_bytes(args.min_bytes_per_step)
    except ValueError as error:
        raise UsageError(f"--min-bytes-per-step: {error}") from None
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
        results = [leaks(recording, least) for recording in loaded.recordings]
        growths = [
            memory_growth(recording, result, missing_parts(recording))
            for recording, result in zip(loaded.recordings, results, strict=True)
        ]
    located = [
        with_modules(recording, findings(result))
        for recording, result in zip(loaded.recordings, results, strict=True)
    ]
    if args.json:
        found = as_json([summarize(recording) for recording in loaded.recordings])
        for shown, growth in zip(found["recordings"], growths, strict=True):
            shown["growth"] = growth_as_json(growth)
        found["findings"] = as_json_findings(zip(loaded.recordings, located, strict=True))
        print(json.dumps(found, indent=2))
    else:
        print_terminal(_page(loaded, located, results, growths))
    return _exit_code(loaded, growths, args) if args.fail_on_leak else 0


def _exit_code(run: "Run", growths: "list[MemoryGrowth]", args: Namespace) -> int:
    """Return 3 where there is a leak; also where that is not decided, unless incomplete data are allowed."""
    from vramscope.analysis.verdicts import GrowthVerdict
    from vramscope.analysis.verdicts.missing import missing_ranks

    if any(growth.verdict is GrowthVerdict.LEAKS for growth in growths):
        return 3
    undecided = [growth.text for growth in growths if not growth.is_decided]
    undecided += [each.text for each in missing_ranks(run)]
    if not growths:
        undecided.append("the run has no recordings")
    if args.allow_incomplete or not undecided:
        return 0
    print(
        f"vramscope: not decided: {printable(undecided[0])}; --allow-incomplete accepts that", file=sys.stderr
    )
    return 3


def as_json_findings(found: "Iterable[tuple[Recording, list[Finding]]]") -> list[dict[str, object]]:
    """Return the findings of ``report --json`` that are leaks or a growing batch."""
    from vramscope.analysis.findings import finding_as_json, located

    return [finding_as_json(each) for each in located(found) if each.finding.kind in _IN_JSON]


def _page(
    run: "Run", located: "list[list[Finding]]", results: "list[Leaks]", growths: "list[MemoryGrowth]"
) -> Iterator[Block]:
    for note in run.notes:
        yield Text(note.text, "note")
    for recording, findings, result, growth in zip(run.recordings, located, results, growths, strict=True):
        rank, device = recording.process.rank, recording.device.index
        yield Heading(f"{run.name}, rank {rank}, device {device}: {result.compared} compared", level=2)
        for note in recording.notes:
            yield Text(note.text, "note")
        for finding in findings:
            yield Text(finding.claim, "plain" if finding.severity == Severity.INFO else finding.severity)
            evidence = finding.evidence
            kept, path = evidence.get("kept_at"), evidence.get("holder_path")
            rows = [
                ("cause", finding.cause),
                ("holder", path or finding.holder),
                ("kept at", kept and f"{kept['file']}:{kept['line']}  {kept['code']}"),
                *(("allocated at", _line(line)) for line in evidence.get("lines", [])),
                ("module", finding.module),
                ("do", finding.advice),
            ]
            yield Grid(("", ""), tuple((name, str(text)) for name, text in rows if text), "ll")
        if not findings or not growth.is_decided:
            yield Text(growth.text, "quiet")


def _line(line: "dict[str, object]") -> str:
    where = f"{line['file']}:{line['line']} {line['function']}" if line["file"] else "no stack recorded"
    where += " (by its backward)" if line.get("in_backward") else ""
    return f"{where}  {format_bytes(int(str(line['bytes_per_step'])))} a step"


COMMAND = described("leaks", run)
