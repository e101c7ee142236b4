"""The words for ranks that differ, the same in the terminal and on the pages."""

from collections.abc import Iterable

from vramscope.analysis.lines import Line, line_words
from vramscope.analysis.rank_comparison import RankGroup
from vramscope.analysis.rank_comparison.imbalance import Imbalance
from vramscope.analysis.rank_comparison.odd import Odd
from vramscope.model.rank_summary import LineBytes, RankSummary
from vramscope.units import format_bytes


def odd_words(odd: Odd) -> str:
    """State how one rank differs from its group, and the line that makes the difference."""
    size, usual = format_bytes(abs(odd.n_bytes)), format_bytes(odd.usual_bytes)
    claim = {
        "grows": f"grows by {format_bytes(odd.bytes_per_step or 0)} per step, {size} more than its group",
        "more": f"peaks {size} above its group ({usual})",
        "less": f"peaks {size} below its group ({usual})",
        "reserves_more": f"reserves {size} more than its group ({usual}) for the same allocated bytes",
        "others": f"shares its device with other processes, which hold {size} more than elsewhere",
    }[odd.why]
    line = ""
    if odd.line_bytes:
        sign = "more" if odd.line_bytes > 0 else "less"
        line = f"; {format_bytes(abs(odd.line_bytes))} {sign} at {rank_line_words(odd.line)}"
    cause = {
        "gathered_here": "; the line gathers the data of other ranks here",
        "embedding": "; the line constructs an embedding, which a pipeline has on its first and last stage",
        "larger_batch": "; the same lines hold as many blocks as elsewhere, but larger ones: its batches are "
        "larger, or padded to a longer sequence",
    }.get(odd.cause or "", "")
    device = f", device {odd.device}" if odd.device else ""
    return f"rank {odd.rank}{device} ({odd.host}) {claim}{line}{cause}"


def group_words(group: RankGroup) -> str:
    """State what a group holds that others do not; '' for nothing."""
    words = []
    if group.line_bytes:
        sign = "+" if group.line_bytes > 0 else "−"
        words.append(f"{sign}{format_bytes(abs(group.line_bytes))} {rank_line_words(group.line)}")
    if group.embedding_bytes:
        words.append(f"holds {format_bytes(group.embedding_bytes)} of embeddings that others do not")
    return "; ".join(words)


_ALIKE_FRACTION = 0.0005
"""Below this share of the median the ranks count as alike: it would be shown as 0.0 %."""


def imbalance_words(found: Imbalance) -> str:
    """State which rank exceeds the median of its group most, in which step, how it usually is, and why."""
    if found.allocated_bytes <= found.median_bytes:
        return "no rank peaks above the median of its group in any step"
    last = found.step + found.n_steps - 1
    step = f"step {found.step}" if found.n_steps == 1 else f"steps {found.step} to {last}"
    most, median = format_bytes(found.allocated_bytes), format_bytes(found.median_bytes)
    words = [
        f"rank {found.rank} is furthest above the median of its group, in {step}: {most} (median {median})"
    ]
    if found.cause == "last_step":
        words.append(
            "the ranks differ in this step only, the last one, where some hold less than in all others: "
            "an uneven last batch, or a step that was cut short"
        )
    elif found.n_compared > 1 and found.usual_fraction < _ALIKE_FRACTION:
        words.append("in at least half of the steps the fullest rank is less than 0.05 % above the median")
    elif found.n_compared > 1:
        words.append(f"in a typical step the fullest rank is {found.usual_fraction:.1%} above the median")
    return "; ".join(words)


def median_and_most_words(median: int, most: int) -> str:
    """Format the median of a group, and its maximum where that reads otherwise."""
    same = format_bytes(median)
    return same if format_bytes(most) == same else f"{same}, at most {format_bytes(most)}"


def notes_of_ranks(summaries: Iterable[RankSummary]) -> list[tuple[str, tuple[int, ...]]]:
    """Return one note of each kind, with all ranks that have one of this kind."""
    texts: dict[str, str] = {}
    ranks: dict[str, set[int]] = {}
    for summary in summaries:
        for note in (note for device in summary.devices for note in device.notes):
            texts.setdefault(note.code, note.text)
            ranks.setdefault(note.code, set()).add(summary.process.rank)
    return [(text, tuple(sorted(ranks[code]))) for code, text in texts.items()]


def rank_line_words(line: LineBytes | None) -> str:
    """Format a line of a summary with its caller; the words for lines without a stack where None."""
    if line is None or not line.frames:
        return "lines without a stack"
    return line_words(Line(line.n_bytes, line.n_blocks, line.frames[:2], line.via, 0))
