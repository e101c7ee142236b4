"""The report of a run: peaks, what is allocated at the peak, steps and findings."""

import json
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.commands._document import Heading, print_page
from vramscope.errors import UsageError

if TYPE_CHECKING:
    from vramscope.analysis.forecast import Outlook
    from vramscope.analysis.lines import LiveBytes
    from vramscope.analysis.summary import Instant, StepPeak, Summary
    from vramscope.analysis.verdicts import MemoryGrowth
    from vramscope.analysis.verdicts.missing import Missing


def run(args: Namespace) -> int:
    """Print the report of a run; return the exit code."""
    from vramscope.analysis.summary import summarize
    from vramscope.commands._pairs import chosen
    from vramscope.commands._summary_page import page
    from vramscope.loading import load

    if args.top < 1:
        raise UsageError(f"--top {args.top}: at least 1")
    if args.path == "-":
        # Print the report of what standard input has, which is kept in a file meanwhile.
        with tempfile.TemporaryDirectory() as folder:
            args.path = str(Path(folder) / "standard input")
            with Path(args.path).open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            return run(args)
    if args.where is not None and args.at is not None:
        raise UsageError(f"--where has the instant in its search: --where '{args.where} live:{args.at}'")
    if args.where is not None:
        return _report_where(args)
    if args.at is not None:
        return _report_at(args)
    if not args.json and args.rank is None and _has_many_ranks(args.path):
        return _report_of_many(args)
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
        loaded = replace(loaded, recordings=chosen(loaded, args.rank, args.device))
        summaries = [summarize(recording) for recording in loaded.recordings]
    if args.json:
        print(json.dumps(as_json(summaries), indent=2))
    else:
        print_page(page(loaded, summaries, args.top), is_markdown=args.markdown)
    return 0


def _report_where(args: Namespace) -> int:
    from vramscope.analysis.allocations import parse
    from vramscope.commands._pairs import chosen
    from vramscope.commands._where_page import as_json, where_page
    from vramscope.loading import load

    # A search that is not understood is reported before anything is read.
    parse(args.where)
    with waiting(f"reading {args.path}"):
        recordings = chosen(load(args.path), args.rank, args.device)
    if args.json:
        print(json.dumps(as_json(recordings, args.where), indent=2))
        return 0
    print_page(where_page(recordings, args.where, args.top), is_markdown=args.markdown)
    return 0


def _report_at(args: Namespace) -> int:
    from vramscope.analysis.summary import at_instant
    from vramscope.commands._pairs import chosen
    from vramscope.commands._where_page import at_page
    from vramscope.loading import load

    with waiting(f"reading {args.path}"):
        recordings = chosen(load(args.path), args.rank, args.device)
        found = [at_instant(recording, args.at) for recording in recordings]
    if args.json:
        print(json.dumps({"schema": 1, "recordings": [_at_instant(each) for each in found]}, indent=2))
    else:
        print_page(at_page(found, args.at, args.top), is_markdown=args.markdown)
    return 0


def _at_instant(found: "Instant") -> dict[str, Any]:
    recording = found.recording
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "instant": found.allocated.instant,
        "allocated_bytes": found.allocated.n_bytes,
        "reserved_bytes": found.reserved_bytes if recording.has_reserved else None,
        "peak_allocated_bytes": found.peak_bytes,
        "categories": found.categories,
        "live": live_as_json(found),
    }


def _has_many_ranks(path: str) -> bool:
    """Return whether the report compares ranks instead of describing each."""
    from vramscope.commands._summary_page import SECTIONS_SHOWN
    from vramscope.remote import local_path
    from vramscope.store.directory import ranks_of

    place = local_path(path)
    if place is None:
        from vramscope.remote.copies import copied_summaries

        place, _ = copied_summaries(path)
    return len(ranks_of(place)) > SECTIONS_SHOWN


def _report_of_many(args: Namespace) -> int:
    from vramscope.analysis.summary import summarize
    from vramscope.commands._comparison_page import comparison, first_to_look_at, shared_findings
    from vramscope.commands._crew import crew
    from vramscope.commands._pairs import chosen
    from vramscope.commands._summary_page import FINDINGS_SHOWN, fullest
    from vramscope.fleet import compared_run
    from vramscope.loading import load

    compared = compared_run(args.path, lambda work, inputs: crew(work, inputs, "reading ranks"))
    rank, why = first_to_look_at(compared)
    run = load(compared.directories[rank])
    (first, *_) = chosen(run, rank, args.device)
    blocks = [
        Heading(args.path.rstrip("/").rpartition("/")[2], level=1),
        *comparison(compared),
        *shared_findings(compared.findings, compared, FINDINGS_SHOWN),
        *fullest(summarize(first), args.top, why),
    ]
    print_page(blocks, is_markdown=args.markdown)
    return 0


def as_json(summaries: "list[Summary]") -> dict[str, Any]:
    """Return the report as JSON of schema 1, to which fields are only ever added."""
    from vramscope.analysis.findings import finding_as_json, located
    from vramscope.commands._ranks_page import ranks_as_json

    found = located((summary.recording, summary.findings) for summary in summaries)
    return {
        "schema": 1,
        "recordings": [_recording(summary) for summary in summaries],
        "ranks": ranks_as_json(summaries),
        "findings": [finding_as_json(each) for each in found],
    }


def _recording(summary: "Summary") -> dict[str, Any]:
    from vramscope.commands._report_json import driver_calls_as_json, levels, waterfall

    recording = summary.recording
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "restart": recording.process.restarts,
        "source": recording.source,
        "events": len(recording.trace),
        "starts_late": summary.starts_late,
        "gaps": summary.gaps,
        **levels(summary),
        "steps": [_step(step) for step in summary.steps],
        "outside_steps": _step(summary.outside) if summary.outside else None,
        "live_at_peak": live_as_json(summary),
        "private_pools_at_peak": [
            {
                "pool": list(pool.id),
                "reserved_bytes": pool.reserved_bytes,
                "allocated_bytes": pool.allocated_bytes,
                "kind": pool.kind.value,
                "place": pool.place or None,
            }
            for pool in summary.private_pools
        ],
        "annotations_at_peak": [
            {"text": text, "blocks": n_blocks, "bytes": n_bytes}
            for text, (n_blocks, n_bytes) in summary.annotated.items()
        ],
        "categories_at_peak": summary.categories,
        "category_own_peaks": summary.category_peaks,
        "samples_peak": dict(summary.samples),
        "pinned_at_peak": summary.pinned
        and {
            "in_use_bytes": summary.pinned.peak_bytes,
            "held_bytes": summary.pinned.reserved_bytes,
            "live": live_as_json(summary.pinned),
        },
        "waterfall": waterfall(summary),
        "driver_calls": driver_calls_as_json(recording),
        "growth": growth_as_json(summary.verdicts.growth),
        "forecast": forecast_as_json(summary.outlook),
        "missing": missing_as_json(summary.verdicts.missing),
        "outcome": recording.outcome.value,
        "prediction": recording.prediction and recording.prediction.to_json(),
        "notes": [{"code": note.code, "text": note.text, "value": note.value} for note in recording.notes],
    }


def growth_as_json(growth: "MemoryGrowth") -> dict[str, Any]:
    """Return the verdict on growth; ``is_decided`` says whether a check can rely on it."""
    return {"verdict": growth.verdict.value, "text": growth.text, "is_decided": growth.is_decided}


def forecast_as_json(outlook: "Outlook") -> dict[str, Any] | None:
    """Return the step at which the limit is reached; None where none is in sight, or that is not known."""
    found = outlook.forecast
    if found is None:
        return None
    return {
        "step": found.step,
        "step_range": list(found.step_range),
        "bytes": found.n_bytes,
        "bytes_per_step": found.bytes_per_step,
        "limit_bytes": found.limit_bytes,
        "text": outlook.text,
    }


def missing_as_json(missing: "Iterable[Missing]") -> list[dict[str, str]]:
    """Return what a recording lacks, the gravest first."""
    return [{"part": each.part.value, "code": str(each.code), "text": each.text} for each in missing]


def _step(step: "StepPeak") -> dict[str, Any]:
    return {
        "index": step.index,
        "peak_allocated_bytes": step.allocated_bytes,
        "is_exact": step.is_exact,
        "has_detail": step.has_detail,
        "phases": [
            {"phase": phase, "peak_allocated_bytes": n_bytes} for phase, n_bytes in step.phases.items()
        ],
    }


def live_as_json(summary: "Summary | Instant") -> list[dict[str, Any]]:
    """Return what was allocated at the peak, or at an instant; the bytes add up to it."""
    total = sum(row.n_bytes for row in summary.live)
    return [_live_row(row, total, has_categories=summary.categories is not None) for row in summary.live]


def _live_row(row: "LiveBytes", total: int, *, has_categories: bool) -> dict[str, Any]:
    from vramscope.analysis.leaks.holders import holder_words

    is_known = bool(row.frames) and not row.is_library
    return {
        "bytes": row.n_bytes,
        "blocks": row.n_blocks,
        "share": row.n_bytes / total,
        "category": row.category.name.lower() if has_categories else None,
        "module": row.module or None,
        "where": row.frames[0]._asdict() if is_known else None,
        "frames": [frame._asdict() for frame in row.frames],
        "holder": holder_words(row.holders) or None,
    }


COMMAND = described("report", run)
