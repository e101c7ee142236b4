"""Memory that grows from step to step: where, by which mistake, and what holds it."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vramscope.commands import Command
from vramscope.model.codes import FindingKind

if TYPE_CHECKING:
    from vramscope.analysis.leaks import Leaks
    from vramscope.commands._document import Block
    from vramscope.model.finding import Finding
    from vramscope.model.recording import Recording, Run

_IN_JSON = (FindingKind.LEAK, FindingKind.GROWING_BATCH)


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``vramscope leaks`` to *parser*."""
    parser.add_argument("path", metavar="RUN", help="a trace directory, or a file that torch wrote")
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    parser.add_argument(
        "--fail-on-leak", action="store_true", help="exit with 3 where there is a leak, for CI"
    )
    parser.add_argument(
        "--min-bytes-per-step", metavar="SIZE", help="leave out what grows by less (16KiB)", default="16KiB"
    )


def run(args: Namespace) -> int:
    """Print the leaks of a run; return the exit code."""
    import json

    from vramscope.analysis.findings import with_modules
    from vramscope.analysis.leaks import findings, leaks
    from vramscope.analysis.summary import summarize
    from vramscope.commands._document import print_terminal
    from vramscope.commands._links import files_of
    from vramscope.commands._waiting import waiting
    from vramscope.commands.report import as_json
    from vramscope.errors import UsageError
    from vramscope.loading import load
    from vramscope.units import parse_bytes

    try:
        least = parse_bytes(args.min_bytes_per_step)
    except ValueError as error:
        raise UsageError(f"--min-bytes-per-step: {error}") from None
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
        results = [leaks(recording, least) for recording in loaded.recordings]
    located = [
        with_modules(recording, findings(result))
        for recording, result in zip(loaded.recordings, results, strict=True)
    ]
    if args.json:
        found = as_json([summarize(recording) for recording in loaded.recordings])
        found["findings"] = as_json_findings(zip(loaded.recordings, located, strict=True))
        print(json.dumps(found, indent=2))
    else:
        print_terminal(list(_page(loaded, located, results)), files_of(loaded.recordings))
    has_leak = any(finding.kind == "leak" for each in located for finding in each)
    return 3 if has_leak and args.fail_on_leak else 0


def as_json_findings(found: "Iterable[tuple[Recording, list[Finding]]]") -> list[dict[str, object]]:
    """Return the findings of ``report --json`` that are leaks or a growing batch."""
    from vramscope.analysis.findings import located
    from vramscope.commands.report import finding_as_json

    return [finding_as_json(each) for each in located(found) if each.finding.kind in _IN_JSON]


def _page(run: "Run", located: "list[list[Finding]]", results: "list[Leaks]") -> "Iterator[Block]":
    from vramscope.commands._document import Heading, Text

    for note in run.notes:
        yield Text(note.text, "note")
    for recording, findings, result in zip(run.recordings, located, results, strict=True):
        rank, device = recording.process.rank, recording.device.index
        yield Heading(
            f"{run.name}, rank {rank}, device {device}: {result.n_iterations} steps compared", level=2
        )
        for note in recording.notes:
            yield Text(note.text, "note")
        for finding in findings:
            yield from _finding_blocks(finding)
        if recording.source == "counters":
            yield Text("recorded without events: whether any line grows is not known", "note")
        elif not findings:
            yield Text(_nothing(recording, result), "quiet")


def _nothing(recording: "Recording", result: "Leaks") -> str:
    from vramscope.analysis.leaks.growth import LEAST_LEVELS

    if not len(recording.trace):
        return "without the allocator's events it is not known what grows"
    if not result.n_iterations and not len(recording.steps):
        return (
            "no steps are known, and without them it is not known whether memory grows from step to step. "
            "Record the training with `vramscope run` or `vramscope.record()`; a snapshot has steps where "
            "each is within torch.profiler.record_function('ProfilerStep#0'), '…#1' and so on"
        )
    if result.n_iterations < LEAST_LEVELS:
        few = f"{result.n_iterations} of the {LEAST_LEVELS} that it takes"
        return f"too few steps to say whether anything grows: {few}"
    if result.n_rises:
        return (
            f"memory rose {result.n_rises} times, at even distances as with evaluations: it takes "
            f"{LEAST_LEVELS - 1} times to say whether that goes on"
        )
    return _small(recording) or "nothing grows from step to step"


def _small(recording: "Recording") -> str:
    """Return what keeps less than a leak in each step; '' for nothing.

    A list of losses that is emptied after an epoch looks the same until then.
    """
    from vramscope.analysis.leaks import leaks
    from vramscope.units import format_bytes

    found = leaks(recording, 1).leaks
    if not found:
        return ""
    where = found[0].lines[0].frame
    parts = [f"nothing grows by much: {format_bytes(round(found[0].bytes_per_step))} a step"]
    parts += [f"from {where.file}:{where.line}"] if where else []
    parts += [f"kept by {found[0].holder}"] if found[0].holder else []
    return f"{', '.join(parts)} (no leak where it is cleared at times, as after an epoch)"


def _finding_blocks(finding: "Finding") -> "Iterator[Block]":
    from vramscope.commands._document import Grid, Text

    yield Text(finding.claim, finding.severity)
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


def _line(line: "dict[str, object]") -> str:
    from vramscope.units import format_bytes

    where = f"{line['file']}:{line['line']} {line['function']}" if line["file"] else "no stack recorded"
    where += " (by its backward)" if line.get("in_backward") else ""
    return f"{where}  {format_bytes(int(str(line['bytes_per_step'])))} a step"


COMMAND = Command("leaks", "lines that grow from step to step, the cause, and who keeps it", arguments, run)
