"""What you would tell a colleague about a run."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from vramscope.commands import Command
from vramscope.errors import UsageError

if TYPE_CHECKING:
    from vramscope.commands._summary import Summary
    from vramscope.model.finding import Finding


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a trace directory, or a file that torch wrote")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table by stack (10)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object, for machines")
    form.add_argument("--markdown", action="store_true", help="for an issue or a pull request")


def run(args: Namespace) -> int:
    import json

    from vramscope.commands._document import markdown, print_terminal
    from vramscope.commands._summary import summarize
    from vramscope.commands._summary_page import page
    from vramscope.commands._waiting import waiting
    from vramscope.load import load

    if args.top < 1:
        raise UsageError(f"--top {args.top}: at least 1")
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
        summaries = [summarize(recording) for recording in loaded.recordings]
    if args.json:
        print(json.dumps(as_json(summaries), indent=2))
    elif args.markdown:
        print(markdown(list(page(loaded, summaries, args.top))), end="")
    else:
        print_terminal(list(page(loaded, summaries, args.top)))
    return 0


def as_json(summaries: "list[Summary]") -> dict[str, Any]:
    """Schema 1; fields are only ever added."""
    from vramscope.commands._ranks_page import ranks_as_json

    return {
        "schema": 1,
        "recordings": [_recording(summary) for summary in summaries],
        "ranks": ranks_as_json(summaries),
        "findings": [finding_as_json(finding) for summary in summaries for finding in summary.findings],
    }


def _recording(summary: "Summary") -> dict[str, Any]:
    from vramscope.commands._sampled_json import levels, waterfall

    recording = summary.recording
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "source": recording.source,
        "events": len(recording.trace),
        "starts_late": summary.starts_late,
        "gaps": summary.gaps,
        **levels(summary),
        "steps": [
            {
                "index": step.index,
                "peak_allocated_bytes": step.allocated_bytes,
                "is_exact": step.is_exact,
                "has_detail": step.has_detail,
                "phases": [
                    {"phase": phase, "peak_allocated_bytes": n_bytes}
                    for phase, n_bytes in step.phases.items()
                ],
            }
            for step in summary.steps
        ],
        "categories_at_peak": summary.categories,
        "category_own_peaks": summary.category_peaks,
        "samples_peak": dict(summary.samples),
        "waterfall": waterfall(summary),
        "notes": [{"code": note.code, "text": note.text, "value": note.value} for note in recording.notes],
    }


def finding_as_json(finding: "Finding") -> dict[str, Any]:
    """The fields that every view shares."""
    where = {"file": finding.file, "line": finding.line, "function": finding.function}
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "claim": finding.claim,
        "where": where if finding.file is not None else None,
        "cause": finding.cause,
        "holder": finding.holder,
        "bytes": finding.n_bytes,
        "bytes_per_step": finding.bytes_per_step,
        "advice": finding.advice,
        "evidence": dict(finding.evidence),
    }


COMMAND = Command("report", "what used the memory: peaks, what was live, steps, phases", arguments, run)
