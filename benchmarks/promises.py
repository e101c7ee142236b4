"""Compares the measurements with our promises, one row for each promise."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import growth
from contest import ALL, ALL_ALONE, FLOOR, FLOOR_ALONE, OPEN, OPEN_ALONE, PEAK, REPORT, RIVAL, WARM, Reader

LARGE = 5_000_000
"""Number of events of the compared file."""
_MOST_GROWTH = 1.05
"""Ratio by which two runs of the same measurement may differ."""
_LEAST_S = 0.001
"""Least CPU seconds at the smallest size: below it the clock's resolution would look like growth."""

Grown = Mapping[int, Mapping[str, float]]


class Promise(NamedTuple):
    """One row of the table of promises."""

    text: str
    promised: str
    measured: str
    is_kept: bool


def table(measured: Sequence[Reader], grown: Grown) -> str:
    """Return a Markdown table; promises about what was not measured are left out."""
    readers = {reader.name: reader for reader in measured if reader.cpu_s and not reader.failure}
    lines = ["| | promised | measured | |", "| --- | ---: | ---: | --- |"]
    lines += [
        f"| {row.text} | {row.promised} | {row.measured} | {'kept' if row.is_kept else '**not kept**'} |"
        for row in (*_of_readers(readers), *_of_growth(grown))
    ]
    return "\n".join(lines)


def _of_readers(readers: Mapping[str, Reader]) -> Iterator[Promise]:
    yield from _import(readers)
    total, whole = readers[ALL_ALONE], readers[ALL + WARM]
    yield Promise(
        f"all {len(growth.ANALYSES)} analyses on the converted trace, asked together",
        "≤ 1.5 s",
        f"{total.cpu:.2f} s ({whole.cpu:.2f} s with starting and opening), {whole.memory:,.0f} MB",
        total.cpu <= 1.5,
    )
    if RIVAL in readers:
        yield from _rival(readers, readers[RIVAL])
    yield from _others(readers)


def _import(readers: Mapping[str, Reader]) -> Iterator[Promise]:
    """Compare the conversion of a foreign pickle with the least that any other reader starts with."""
    rows = (
        ("each in a fresh process, imports included", OPEN, FLOOR),
        ("the call alone", OPEN_ALONE, FLOOR_ALONE),
    )
    for how, ours, its in rows:
        mine, floor = readers[ours], readers[its]
        ratio = mine.cpu / floor.cpu
        text = f"import of a pickle ÷ `pickle.load`, CPU, {how}"
        yield Promise(text, "≤ 1.0; compiled ≤ 0.35", f"{ratio:.2f} ({mine.cpu:.2f} s)", ratio <= 1)
    memory = readers[OPEN].memory / readers[FLOOR].memory
    text = "the same, memory at its highest"
    yield Promise(text, "≤ 0.5", f"{memory:.2f} ({readers[OPEN].memory:,.0f} MB)", memory <= 0.5)


def _rival(readers: Mapping[str, Reader], rival: Reader) -> Iterator[Promise]:
    """Compare with torch's own page of the same file."""
    warm, cold = readers[PEAK + WARM], readers[PEAK]
    faster = rival.cpu / warm.cpu
    yield Promise(
        f"open and its peak, from the converted trace: faster than {RIVAL}",
        "≥ 15 ×",
        f"{faster:.0f} × ({warm.cpu:.2f} s; {rival.cpu / cold.cpu:.1f} × before it is converted)",
        faster >= 15,
    )
    for name in (PEAK + WARM, REPORT + WARM, REPORT):
        less = rival.memory / readers[name].memory
        measured = f"{less:.1f} × ({readers[name].memory:,.0f} MB)"
        yield Promise(f"{name}: less memory than {RIVAL}", "≥ 6 ×", measured, less >= 6)


def _others(readers: Mapping[str, Reader]) -> Iterator[Promise]:
    """Return the best of all others, without the floor, which explains nothing."""
    others = [r for r in readers.values() if "vramscope" not in r.name and not r.name.startswith(FLOOR)]
    for is_warm in (False, True):
        rivals = [reader for reader in others if reader.is_warm == is_warm]
        ours = readers[REPORT + WARM if is_warm else REPORT]
        if rivals:
            quick, lean = min(r.cpu for r in rivals), min(r.memory for r in rivals)
            yield Promise(
                f"{ours.name}: ahead of every peer measured so",
                f"< {quick:.2f} s, < {lean:,.0f} MB",
                f"{ours.cpu:.2f} s, {ours.memory:,.0f} MB",
                ours.cpu < quick and ours.memory < lean,
            )


def _of_growth(grown: Grown) -> Iterator[Promise]:
    if LARGE in grown:
        yield from _large(grown[LARGE])
    sizes = sorted(grown)
    if len(sizes) > 1:
        first, last = grown[sizes[0]], grown[sizes[-1]]
        ratio = last["events"] / first["events"]
        rise = {name: last[name] / max(first[name], _LEAST_S) / ratio for name in growth.ANALYSES}
        worst = max(rise, key=lambda name: rise[name])
        text = f"growth of every analysis from {sizes[0]:,} to {sizes[-1]:,} events ÷ linear"
        yield Promise(text, "≤ 1 (± 0.05)", f"{rise[worst]:.2f} ({worst})", rise[worst] <= _MOST_GROWTH)


def _large(found: Mapping[str, float]) -> Iterator[Promise]:
    total = sum(found[name] for name in growth.ANALYSES)
    memory = found["memory MB, analyses too"] / 1024
    yield Promise(
        f"{LARGE:,} events: opened for the first time and all analyses asked, memory at its highest",
        "< 4 GB",
        f"{memory:.2f} GB ({found['open']:.1f} s to open, {total:.1f} s for all)",
        memory < 4,
    )
    again = found["open again"]
    yield Promise(f"{LARGE:,} events: opening the converted trace", "≤ 0.3 s", f"{again:.3f} s", again <= 0.3)
    state = 1000 * found["a state (p95)"]
    text = f"{LARGE:,} events: state at a random moment, 95th percentile"
    yield Promise(text, "≤ 50 ms", f"{state:.1f} ms", state <= 50)
