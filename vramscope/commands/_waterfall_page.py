"""The table that accounts for all bytes of the device."""

from collections.abc import Iterator

from vramscope.analysis.summary import Summary
from vramscope.analysis.waterfall import BAR_WORDS, Bar, Waterfall, missing_parts
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.units import format_bytes, format_share


def waterfall(summary: Summary) -> Iterator[Block]:
    """Yield the fullest sample next to the last one; nothing if torch's counters were not sampled."""
    found = summary.waterfall
    if not len(found) or found.reserved_bytes.max() < 0:
        return
    fullest, last = found.bars(found.fullest), found.bars(found.last)
    if all(bar.n_bytes is None for bar in fullest):
        return
    yield Heading("Where all bytes of the device are", level=3)
    rows = [_row(found, bar, last) for bar in fullest if bar.n_bytes is not None]
    yield Grid(("", "at the fullest", "share", "at the end", "by"), tuple(rows), "lrrrl")
    for reason, names in missing_parts(fullest).items():
        which = "; ".join(BAR_WORDS[name].in_terminal for name in names)
        yield Text(f"{which if len(names) < 5 else 'all other parts'}: {reason}", "quiet")
    drift = int(found.drift_bytes.max(initial=0))
    if drift:
        text = f"what is reserved or held changed by up to {format_bytes(drift)} while the driver was read"
        yield Text(f"{text}: what is outside of torch may be wrong by as much", "quiet")


def _row(found: Waterfall, bar: Bar, last: tuple[Bar, ...]) -> tuple[str, ...]:
    total = int(found.total_bytes[found.fullest])
    end = next((each.n_bytes for each in last if each.name == bar.name), None)
    share = format_share(bar.n_bytes or 0, total) if total > 0 else ""
    at_fullest, at_end = ("" if n_bytes is None else format_bytes(n_bytes) for n_bytes in (bar.n_bytes, end))
    return BAR_WORDS[bar.name].in_terminal, at_fullest, share, at_end, bar.source
