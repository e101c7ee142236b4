"""The table that accounts for all bytes of the device."""

from collections.abc import Iterator

from vramscope.analysis.summary import Summary
from vramscope.analysis.waterfall import Bar, Waterfall
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.units import format_bytes, format_share

_BARS = {
    "requested": "live tensors, as requested",
    "rounding": "rounding of requests to blocks",
    "allocated": "live tensors with rounding",
    "pending": "freed, still used by another stream",
    "inactive_split": "cached: free pieces of segments in use",
    "releasable": "cached: free segments",
    "private_pools": "cached: free in private pools",
    "nccl": "NCCL's communicators",
    "own_outside": "this process outside of torch (context, libraries)",
    "others": "other processes",
    "unattributed": "used by processes that the driver does not list",
    "outside": "outside of torch's allocator in all",
    "used": "used, by torch or not",
    "free": "free",
    "driver": "the driver's own reserve",
}


def waterfall(summary: Summary) -> Iterator[Block]:
    """Yield the fullest sample next to the last one; nothing if torch's counters were not sampled."""
    found = summary.waterfall
    if not len(found) or found.reserved_bytes.max() < 0:
        return
    fullest, last = found.bars(found.fullest), found.bars(found.last)
    if all(bar.n_bytes is None for bar in fullest):
        return
    yield Heading("Where all bytes of the device are", level=3)
    rows = [_row(found, bar, last) for bar in fullest]
    yield Grid(("", "at the fullest", "share", "at the end", "by"), tuple(rows), "lrrrl")
    drift = int(found.drift_bytes.max(initial=0))
    if drift:
        text = f"what is reserved or held changed by up to {format_bytes(drift)} while the driver was read"
        yield Text(f"{text}: what is outside of torch may be wrong by as much", "quiet")


def _row(found: Waterfall, bar: Bar, last: tuple[Bar, ...]) -> tuple[str, ...]:
    total = int(found.total_bytes[found.fullest])
    end = next((each.n_bytes for each in last if each.name == bar.name), None)
    share = "" if bar.n_bytes is None else format_share(bar.n_bytes, total)
    amounts = ("" if n_bytes is None else format_bytes(n_bytes) for n_bytes in (bar.n_bytes, end))
    at_fullest, at_end = amounts
    return _BARS[bar.name], at_fullest, share, at_end, bar.source
