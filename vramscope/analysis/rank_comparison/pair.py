"""Two ranks beside each other: the lines whose bytes at the peak differ."""

from typing import NamedTuple

from vramscope.analysis.rank_comparison.members import LineKey, line_key
from vramscope.model.rank_summary import DeviceSummary, LineBytes


class LineDifference(NamedTuple):
    """One line with its bytes at the peak of each of two ranks."""

    line: LineBytes | None
    """The line; None for everything that is no line of its own in the summaries."""
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """Bytes of the second rank minus bytes of the first."""
        return self.after_bytes - self.before_bytes


def differing_lines(before: DeviceSummary, after: DeviceSummary) -> list[LineDifference]:
    """Compare what two ranks held at their peaks, by line.

    The largest difference comes first. A summary holds the largest lines only, so a line that one of the two
    lists may be among the others of the other one; then both are in the last row.
    """
    lines: dict[LineKey, LineBytes] = {}
    totals: list[dict[LineKey, int]] = []
    for summary in (before, after):
        total: dict[LineKey, int] = {}
        for line in summary.lines:
            key = line_key(line)
            total[key] = total.get(key, 0) + line.n_bytes
            lines.setdefault(key, line)
        totals.append(total)
    others = [before.other_bytes, after.other_bytes]
    found = []
    for key, line in lines.items():
        held = [total.get(key, 0) for total in totals]
        cut = [key not in total and other > 0 for total, other in zip(totals, others, strict=True)]
        # Its bytes may be among the others of the rank that does not list it.
        if any(cut) and max(held) <= max(other for other, is_cut in zip(others, cut, strict=True) if is_cut):
            others = [other + n_bytes for other, n_bytes in zip(others, held, strict=True)]
            continue
        found.append(LineDifference(line, *held))
    found.sort(key=lambda each: -abs(each.change_bytes))
    rest = LineDifference(None, others[0], others[1])
    return [each for each in (*found, rest) if each.change_bytes]
