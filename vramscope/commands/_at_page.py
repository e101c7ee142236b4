"""The page of ``vramscope report --at``: what was allocated at one instant, and who keeps it."""

from collections.abc import Iterator, Sequence

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
        allocated = each.allocated.n_bytes
        yield Heading(f"{format_bytes(allocated)} allocated {when}{of}", level=1)
        yield Text(_where(each), "quiet")
        for note in each.recording.notes:
            yield Text(note.text, "note")
        if each.live:
            yield live_table(each.live, top, has_holders=True)
        kinds = sorted((each.categories or {}).items(), key=lambda pair: -pair[1])
        words = (
            f"{format_bytes(n)} {name.replace('_', ' ')} ({format_share(n, allocated)})" for name, n in kinds
        )
        yield Text(", ".join(words))


def _where(each: Instant) -> str:
    below = each.peak_bytes - each.allocated.n_bytes
    parts = [each.allocated.where, f"instant {each.allocated.instant:,}"]
    if each.recording.has_reserved:
        parts.append(f"{format_bytes(each.reserved_bytes)} reserved")
    parts.append(f"{format_bytes(below)} below the peak" if below else "the peak")
    return ", ".join(filter(None, parts))
