"""The differences between two runs."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.commands._document import Block, Grid, Heading, Text, print_answer
from vramscope.errors import UsageError
from vramscope.package_data import words
from vramscope.units import format_bytes, format_count

if TYPE_CHECKING:
    from vramscope.analysis.compare import Change, Comparison
    from vramscope.model.recording import Recording, Run

_KINDS = words(__file__, "_comparison_page.tsv", "kind")


def run(args: Namespace) -> int:
    """Print the differences between two runs; return the exit code."""
    from vramscope.analysis.compare import compare
    from vramscope.analysis.verdicts import undecided_difference
    from vramscope.commands._pairs import alone, chosen, pairs
    from vramscope.loading import load

    if args.top < 1 or not 0 <= args.tolerance <= 100:
        raise UsageError("--top is at least 1, --tolerance a percentage")
    with waiting(f"reading {args.before} and {args.after}"):
        before, after = (
            replace(run, recordings=chosen(run, args.rank, args.device))
            for run in (load(args.before), load(args.after))
        )
        left = alone(before, after)
        found = [
            (new, compare(old, new, tolerance=args.tolerance / 100), undecided_difference(old, new))
            for old, new in pairs(before, after)
        ]
    return print_answer(args, lambda: as_json(found, left), _page(before, after, found, left, args.top))


def as_json(
    found: "list[tuple[Recording, Comparison, str]]", left: "tuple[list[Recording], list[Recording]]"
) -> dict[str, Any]:
    """Return the comparison as JSON of schema 1, to which fields are only ever added."""
    only = [
        [{"rank": each.process.rank, "device": each.device.index} for each in recordings]
        for recordings in left
    ]
    comparisons = [_comparison(*each) for each in found]
    return {"schema": 1, "comparisons": comparisons, "only_in_a": only[0], "only_in_b": only[1]}


def _comparison(recording: "Recording", comparison: "Comparison", undecided: str) -> dict[str, Any]:
    return {
        "rank": recording.process.rank,
        "device": recording.device.index,
        "steps": comparison.steps.tolist(),
        "steps_only_in_a": comparison.only_before,
        "steps_only_in_b": comparison.only_after,
        "peak_a_bytes": comparison.peak_before_bytes,
        "peak_b_bytes": comparison.peak_after_bytes,
        "tolerance_bytes": comparison.tolerance_bytes,
        "in_kind": list(comparison.in_kind),
        "changes": [_change(change) for change in comparison.changes],
        "is_decided": not undecided,
        "reason": undecided or None,
    }


def _change(change: "Change") -> dict[str, Any]:
    place = change.place
    is_known = place is not None and bool(place.file) and not place.is_library
    where = {name: getattr(place, name) for name in ("file", "line", "function")} if is_known else None
    return {
        "kind": change.kind,
        "name": change.name,
        "before": change.before_bytes,
        "after": change.after_bytes,
        "typical": change.typical_bytes,
        "n_steps": change.n_steps,
        "is_outside": change.is_outside,
        "module": change.module or None,
        "bytes": change.n_bytes,
        "where": where,
    }


def _page(
    before: "Run",
    after: "Run",
    found: "list[tuple[Recording, Comparison, str]]",
    left: "tuple[list[Recording], list[Recording]]",
    top: int,
) -> Iterator[Block]:
    from vramscope.analysis.findings import ranks_words

    yield Heading(f"{before.name} → {after.name}", level=1)
    for name, recordings in zip((before.name, after.name), left, strict=True):
        if recordings:
            whose = ranks_words([(each.process.rank, each.device.index) for each in recordings])
            yield Text(f"{whose}: only in {name}, and not compared", "note")
    for recording, comparison, undecided in found:
        if len(found) > 1 or any(left):
            words = f"rank {recording.process.rank}", f"device {recording.device.index}", recording.run_words
            yield Heading(", ".join(filter(None, words)))
        if comparison.in_kind:
            yield Text(f"in kind: {'; '.join(comparison.in_kind)}")
        if recording.source == "counters":
            yield Text("recorded without events: there is nothing to compare", "note")
        else:
            yield from _one(comparison, undecided, top)


def _one(comparison: "Comparison", undecided: str, top: int) -> Iterator[Block]:
    n_steps = len(comparison.steps)
    if not max(comparison.peak_before_bytes, comparison.peak_after_bytes):
        yield Text("no byte was allocated in either: there is nothing to compare", "note")
        return
    over = f"{format_count(n_steps, 'step')} that both have" if n_steps else "no step is in both"
    least = format_bytes(comparison.tolerance_bytes)
    if undecided:
        yield Text(f"compared is what was recorded: {undecided}", "note")
    if not comparison.changes:
        where = " in what was recorded" if undecided else ""
        yield Text(f"no difference of {least} or more{where}; {over}")
        return
    yield Text(f"{over}; differences below {least} are left out", "quiet")
    what = "in the steps compared and outside of all steps" if n_steps else "in the whole recording"
    yield Text(f"before and after: the most at any moment {what}; peaks are those of the whole runs", "quiet")
    for name, n_only in (("first", comparison.only_before), ("second", comparison.only_after)):
        if n_only and n_steps:
            alone = f"{n_only:,} steps are" if n_only > 1 else "one step is"
            yield Text(f"{alone} only in the {name}: of these, the peak alone is compared", "note")
    for kind, title in _KINDS.items():
        yield from _table(title, comparison.of(kind), top, n_steps)


def _table(title: str, changes: "tuple[Change, ...]", top: int, n_steps: int) -> Iterator[Block]:
    if not changes:
        return
    yield Heading(title, level=3)
    rows = tuple(_row(change, n_steps) for change in changes[:top])
    yield Grid(("difference", "before", "after", "differs in", ""), rows, "rrrrl")
    if len(changes) > top:
        yield Text(f"{len(changes) - top:,} more (--top {len(changes)})", "quiet")


def _row(change: "Change", n_steps: int) -> tuple[str, ...]:
    sign = "+" if change.n_bytes > 0 else ""
    steps = [format_count(change.n_steps, "step")] if change.n_steps and n_steps else []
    outside = ["outside"] if change.is_outside and n_steps else []
    sizes = format_bytes(change.before_bytes), format_bytes(change.after_bytes)
    name = change.name if change.kind == "line" else change.name.replace("_", " ")
    module = f"  [{change.module}]" if change.module else ""
    return f"{sign}{format_bytes(change.n_bytes)}", *sizes, " + ".join(steps + outside), name + module


COMMAND = described("diff", run)
