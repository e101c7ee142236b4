"""The report of a run: peaks, what is allocated at the peak, steps and findings."""

import shutil
import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from vramscope.commands import described
from vramscope.commands._crew import crew, waiting
from vramscope.commands._document import Heading, print_answer, print_page
from vramscope.errors import UsageError


def run(args: Namespace) -> int:
    """Print the report of a run; return the exit code."""
    from vramscope.analysis.summary import summarize
    from vramscope.commands._pairs import chosen
    from vramscope.commands._report_json import as_json
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
    return print_answer(args, lambda: as_json(summaries), page(loaded, summaries, args.top))


def _report_where(args: Namespace) -> int:
    from vramscope.analysis.allocations import parse
    from vramscope.commands._pairs import chosen
    from vramscope.commands._where_page import as_json, where_page
    from vramscope.loading import load

    # A search that is not understood is reported before anything is read.
    parse(args.where)
    with waiting(f"reading {args.path}"):
        recordings = chosen(load(args.path), args.rank, args.device)
    blocks = where_page(recordings, args.where, args.top)
    return print_answer(args, lambda: as_json(recordings, args.where), blocks)


def _report_at(args: Namespace) -> int:
    from vramscope.analysis.summary import at_instant
    from vramscope.commands._pairs import chosen
    from vramscope.commands._report_json import at_instant_as_json
    from vramscope.commands._where_page import at_page
    from vramscope.loading import load

    with waiting(f"reading {args.path}"):
        recordings = chosen(load(args.path), args.rank, args.device)
        found = [at_instant(recording, args.at) for recording in recordings]

    def answer() -> dict[str, object]:
        return {"schema": 1, "recordings": [at_instant_as_json(each) for each in found]}

    return print_answer(args, answer, at_page(found, args.at, args.top))


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


COMMAND = described("report", run)
