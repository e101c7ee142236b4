"""The page of ``vramscope predict``: the verdict, where memory runs out, what holds it, every card."""

import re
from collections.abc import Iterator
from pathlib import Path

from vramscope.analysis.lines import line_words, lines
from vramscope.analysis.summary import Summary
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.model.prediction import FITS_WORD, OnCard, OtherRun, Prediction
from vramscope.package_data import words
from vramscope.prediction.largest import LargestSize
from vramscope.prediction.sizes import Size
from vramscope.units import format_bytes, format_least, format_most, format_share

_REASONS, _LINES, _FRAMES = 8, 6, 5
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""One of the modules in a list, in the path of a module."""
_CERTAINTY = words(__file__, "_summary_page.tsv", "certainty")


def page(found: Prediction, summary: Summary) -> Iterator[Block]:
    """Yield the answer: the verdict, what it rests on, and every card."""
    yield Heading(found.sentence, level=1)
    if found.out_of_memory_point is not None:
        point = found.out_of_memory_point
        asks = f"{point.operator or 'an operator'} asks for {format_bytes(point.wanted_bytes)}"
        moment = _moment(point.step, point.phase)
        in_use = f"with {format_bytes(point.in_use_bytes)} in use"
        yield Text(f"memory runs out{f' in {moment}' if moment else ''}: {asks} {in_use}", "error")
        for file, line, function in point.frames[:_FRAMES]:
            yield Text(f"  {Path(file).name}:{line} {function}")
    yield from _peak(found.without_limit or found)
    to = "to its end" if found.ended_after == "its end" else f"for {found.ended_after}"
    yield Text(f"the program was run {to}", "quiet")
    yield Text(_CERTAINTY[found.certainty], "plain" if found.certainty == "checked" else "warning")
    for reason in found.reasons[:_REASONS]:
        yield Text(f"  {reason}", "quiet")
    if len(found.reasons) > _REASONS:
        yield Text(f"  and {len(found.reasons) - _REASONS} more (--json has all)", "quiet")
    low, high = found.range_bytes
    if found.certainty == "estimate" and high is not None and format_bytes(low) != format_bytes(high):
        yield Text(f"peak allocated between {format_least(low)} and {format_most(high)}")
    yield from _otherwise(found)
    yield from _holds(summary)
    yield from _cards(found)
    yield Text(f"vramscope report {found.run}    everything else about it; serve opens it too", "quiet")


def _otherwise(found: Prediction) -> Iterator[Block]:
    if not found.otherwise:
        return
    yield Heading("With another answer where a value decides that a dry run does not compute", level=3)
    rows = tuple((each.where, each.answer, _peaks_of(each)) for each in found.otherwise)
    yield Grid(("", "", ""), rows, "lll")


def _peaks_of(run: OtherRun) -> str:
    if run.peak_allocated_bytes is None or run.peak_reserved_bytes is None:
        return f"cannot be run: {run.problem}"
    at_least = "" if run.is_whole else "memory runs out: at least "
    allocated, reserved = format_bytes(run.peak_allocated_bytes), format_bytes(run.peak_reserved_bytes)
    return f"{at_least}{allocated} allocated, {reserved} reserved"


def _peak(found: Prediction) -> Iterator[Block]:
    moment = _moment(found.step, found.phase)
    if moment and found.out_of_memory is None:
        yield Text(f"the peak is reached in {moment}")


def _moment(step: int | None, phase: str | None) -> str:
    words = ["" if step is None else f"step {step}", (phase or "").replace("_", " ")]
    return ", ".join(filter(None, words))


def _holds(summary: Summary) -> Iterator[Block]:
    total = sum(row.n_bytes for row in summary.live)
    if not total:
        return
    yield Heading(f"{format_bytes(total)} allocated at that moment, by line", level=3)
    rows = tuple(
        (format_bytes(row.n_bytes), format_share(row.n_bytes, total), line_words(row))
        for row in lines(summary.live)[:_LINES]
    )
    yield Grid(("", "", ""), rows, "rrl")
    if summary.categories:
        ordered = sorted(summary.categories.items(), key=lambda item: -item[1])
        words = ", ".join(
            f"{name.replace('_', ' ')} {format_bytes(n_bytes)}" for name, n_bytes in ordered if n_bytes
        )
        yield Text(f"by category: {words}")
    alike: dict[str, int] = {}
    for name, n_bytes in by_module(summary):
        pattern = _NUMBER.sub("*", name)
        alike[pattern] = alike.get(pattern, 0) + n_bytes
    if alike:
        modules = sorted(alike.items(), key=lambda item: -item[1])[:_LINES]
        words = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in modules)
        yield Text(f"by module: {words}")


def by_module(summary: Summary) -> list[tuple[str, int]]:
    """Return the allocated bytes at the peak of each module, largest first; '' is left out."""
    sums: dict[str, int] = {}
    for row in summary.live:
        if row.module:
            sums[row.module] = sums.get(row.module, 0) + row.n_bytes
    return sorted(sums.items(), key=lambda item: -item[1])


def _cards(found: Prediction) -> Iterator[Block]:
    yield Heading("On each card", level=3)
    alike: dict[tuple[str, ...], list[str]] = {}
    for card in found.cards:
        verdict = (
            format_bytes(card.capacity_bytes),
            FITS_WORD[card.fits],
            headroom_words(card),
            "dry run" if card.is_own_run else "estimate",
        )
        alike.setdefault(verdict, []).append(card.card)
    rows = tuple((", ".join(names), *verdict) for verdict, names in alike.items())
    yield Grid(("", "has", "", "to spare", ""), rows, "lrlll")
    yield Text(f"estimate: from the run for the {found.card}, as libraries differ between cards", "quiet")
    if any(card.fits is None and not card.is_own_run for card in found.cards):
        yield Text("--cards runs it dry for each card where that cannot tell", "quiet")


def headroom_words(card: OnCard) -> str:
    """Return the bytes to spare, or missing, in words; '' where they are not known."""
    if card.headroom_bytes is None:
        return ""
    low, high = card.headroom_bytes
    if card.fits is False:
        return f"at most {_spare(high)}"
    if low == high:
        return _spare(high)
    if low is None:
        return f"at most {_spare(high)}"
    return f"{_spare(low)} to {_spare(high)}" if card.fits is None else f"{_spare(low)} or more"


def _spare(n_bytes: int) -> str:
    return f"{'−' if n_bytes < 0 else ''}{format_bytes(abs(n_bytes))}"


def largest_page(size: Size, found: LargestSize, card: str, *, is_stopped: bool) -> Iterator[Block]:
    """Yield the answer of a search for the largest size, complete or not."""
    yield Heading(largest_words(size, found, card, is_stopped=is_stopped), level=1)
    rows = tuple(
        (
            f"{each.size:,}",
            f"{'at least ' if each.fits is False else ''}{format_bytes(each.peak_reserved_bytes)}",
            FITS_WORD[each.fits],
            each.problem,
        )
        for each in sorted(found.trials, key=lambda trial: trial.size)
    )
    yield Grid((size.name, "reserved", "", ""), rows, "rrll")
    for each in found.contradictions:
        yield Text(
            f"{each.size:,} fits although {found.too_large:,} does not: the need does not grow with "
            f"{size.name}, and only the sizes in the table are known",
            "warning",
        )


def largest_words(size: Size, found: LargestSize, card: str, *, is_stopped: bool = False) -> str:
    """Return what the dry runs tell, in one line."""
    fitting, too_large = found.fitting, found.too_large
    stopped = "; stopped before the limit was found" if is_stopped else ""
    if found.problem:
        return f"{size.name}: no answer, {found.problem}"
    if fitting is None and too_large == 1:
        return f"not even {size.name} 1 fits on {card}"
    if fitting is None:
        limit = "" if too_large is None else f"; {too_large:,} does not"
        return f"no {size.name} is known to fit on {card}{limit}{stopped}"
    if found.is_exact:
        return f"largest {size.name} on {card}: {fitting:,} fits, {too_large:,} does not"
    if too_large is not None:
        limit = f", {too_large:,} does not; which of the sizes between them fit is not known"
    elif found.first_open is not None:
        limit = f"; for {found.first_open:,} that is not certain{stopped}"
    else:
        limit = f", and no limit was found{stopped or '; the need hardly grows with it'}"
    return f"{size.name} {fitting:,} fits on {card}{limit}"
