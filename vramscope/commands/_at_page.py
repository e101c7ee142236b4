"""The page of ``vramscope report --at``: what was allocated at one instant, and who keeps it."""

from collections.abc import Iterator, Sequence
from typing import Any

from vramscope.analysis.summary import Instant
from vramscope.commands._document import Block, Heading, Text
from vramscope.commands._summary_page import live_table
from vramscope.units import format_bytes, format_share


def at_page(found: Sequence[Instant], word: str, top: int) -> Iterator[Block]:
    """Yield what each recording had allocated at the instant that *word* names."""
    when = f"at the {word}" if word.isalpha() else f"after {int(word):,} events"
    for each in found:
        process, device = each.recording.process, each.recording.device
        of = f" (rank {process.rank}, device {device.index})" if len(found) > 1 else ""
        yield Heading(f"{format_bytes(each.allocated_bytes)} allocated {when}{of}", level=1)
        yield Text(_where(each), "quiet")
        for note in each.recording.notes:
            yield Text(note.text, "note")
        if each.live:
            yield live_table(each.live, top, has_holders=True)
        if each.categories:
            shares = (
                f"{format_bytes(n)} {name.replace('_', ' ')} ({format_share(n, each.allocated_bytes)})"
                for name, n in sorted(each.categories.items(), key=lambda pair: -pair[1])
                if n
            )
            yield Text(", ".join(shares))


def _where(each: Instant) -> str:
    below = each.peak_bytes - each.allocated_bytes
    parts = [each.where, f"instant {each.instant:,}"]
    if each.recording.has_reserved:
        parts.append(f"{format_bytes(each.reserved_bytes)} reserved")
    parts.append(f"{format_bytes(below)} below the peak" if below else "the peak")
    return ", ".join(filter(None, parts))


def as_json(found: Sequence[Instant]) -> dict[str, Any]:
    """Return the same for machines; rows of ``live`` are those of ``live_at_peak`` in ``report --json``."""
    from vramscope.commands.report import live_as_json

    return {
        "schema": 1,
        "recordings": [
            {
                "rank": each.recording.process.rank,
                "device": each.recording.device.index,
                "instant": each.instant,
                "allocated_bytes": each.allocated_bytes,
                "reserved_bytes": each.reserved_bytes if each.recording.has_reserved else None,
                "peak_allocated_bytes": each.peak_bytes,
                "categories": each.categories,
                "live": live_as_json(each),
            }
            for each in found
        ],
    }
