"""What would fit, in words: the answer first, then what it rests on."""

from collections.abc import Iterator

from vramscope.analysis._cards import BASIS as CARDS_BASIS
from vramscope.analysis._cards import Card
from vramscope.analysis.strategies import Strategies
from vramscope.analysis.what_if import Outcome
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.commands.fit import BASIS, Answer, Place
from vramscope.model.trace import Action
from vramscope.units import format_bytes

_HEADER = ("", "peak reserved", "segments", "retries", "")


def page(answer: Answer, name: str) -> Iterator[Block]:
    """The whole page."""
    yield Heading(f"{name}: what would fit", level=1)
    yield Text(_verdict(answer))
    yield from _to_do(answer)
    found = answer.settings
    if found is not None and found.recorded_peak and not found.is_reproduced:
        replayed, recorded = format_bytes(found.base.peak_reserved), format_bytes(found.recorded_peak)
        text = f"an estimate: as it is, the replay reserves {replayed} at most; {recorded} were recorded"
        yield Text(text, "note")
    yield Text(_smallest(answer))
    if _ended_short(answer):
        text = "it ends with an allocation that failed: what would have come after it is not known"
        yield Text(text, "note")
    yield from _settings(answer)
    yield from _cards(answer)
    yield from _batch(answer)
    yield from _strategies(answer.strategies)
    how = "measured" if answer.outside_is_known else "assumed: the recording does not say"
    outside = f"{format_bytes(answer.outside)} of a card outside of the allocator ({how})"
    yield Heading("What this rests on", level=3)
    yield Text(f"{outside}; {BASIS}; {CARDS_BASIS}", "quiet")


def _verdict(answer: Answer) -> str:
    """The first line: does it fit, and what helps."""
    if not answer.cards:
        return _without_a_device(answer)
    place, plain, chosen = answer.cards[0]
    room = answer.left_of(place.total_bytes)
    if not plain.fits:
        said = (
            f"Does not fit {place.label}: out of memory {answer.where(plain)}, "
            f"{format_bytes(plain.failed_bytes)} asked for with {format_bytes(plain.failed_requested)} in use"
        )
    elif plain.n_retries:
        said = f"Just fits {place.label}: the whole cache is released {_times(plain)} to make room"
    else:
        spare = format_bytes(max(room - plain.peak_reserved, 0))
        said = f"Fits {place.label}: at most {format_bytes(plain.peak_reserved)} reserved, {spare} to spare"
    return f"{said}; {_what_helps(answer, plain, chosen)}"


def _times(outcome: Outcome) -> str:
    return "once" if outcome.n_retries == 1 else f"{outcome.n_retries} times"


def _what_helps(answer: Answer, plain: Outcome, chosen: Outcome | None) -> str:
    if answer.chosen is None or chosen is None:
        return "no setting makes it fit" if not plain.fits else "change nothing"
    name = answer.chosen.name
    if not chosen.fits:
        return f"with {name} it does not fit" if plain.fits else f"nor does it with {name}"
    if not plain.fits:
        released = f", with the cache released {_times(chosen)}" if chosen.n_retries else ""
        return f"with {name} it {'gets past that' if _ended_short(answer) else 'fits'}{released}"
    if chosen.n_retries != plain.n_retries:
        return f"with {name} {_times(chosen) if chosen.n_retries else 'never'}"
    saved = plain.peak_reserved - chosen.peak_reserved
    word = "less" if saved >= 0 else "more"
    return f"{name} reserves {format_bytes(abs(saved))} {word}" if saved else f"{name} changes nothing"


def _without_a_device(answer: Answer) -> str:
    found = answer.settings.base if answer.settings else answer.as_asked
    if found is None:
        return ""
    said = (
        f"Reserves at most {format_bytes(found.peak_reserved)}, "
        f"with at most {format_bytes(found.peak_allocated)} allocated"
    )
    if not found.fits:
        said = f"Ran out of memory {answer.where(found)}"
    return f"{said}; {answer.settings.reason}" if answer.settings else said


def _to_do(answer: Answer) -> Iterator[Block]:
    """What to set: the environment's line, the program's line."""
    found = answer.settings
    if found is None or found.advised is None:
        return
    if found.environment:
        yield Text(f"set before the program starts:  {found.environment}")
    if found.advised.candidate.call:
        yield Text(f"and in the program:  {found.advised.candidate.call}")


def _smallest(answer: Answer) -> str:
    plain, chosen = answer.smallest
    said = f"Smallest card that fits: {_named(plain)}"
    if answer.chosen is None or chosen == plain:
        return said
    return f"{said}; with {answer.chosen.name}: {_named(chosen)}"


def _named(card: Card | None) -> str:
    return "none that is known here" if card is None else f"{card.label} ({format_bytes(card.total_bytes)})"


def _ended_short(answer: Answer) -> bool:
    """Whether nothing was allocated any more after the last allocation that failed."""
    action = answer.recording.trace.action
    failed, made = (mask.nonzero()[0] for mask in (action == Action.OOM, action == Action.ALLOC))
    return bool(len(failed)) and (not len(made) or int(failed[-1]) > int(made[-1]))


def _settings(answer: Answer) -> Iterator[Block]:
    found = answer.settings
    place = f" on {answer.places[0].label}" if answer.places else ""
    yield Heading(f"Settings of the allocator{place}", level=3)
    if found is None:
        if answer.as_asked is not None and answer.asked is not None:
            yield Grid(_HEADER, (_row(answer, answer.asked.name, answer.as_asked),), "lrrrl")
        return
    yield Text(found.reason)
    rows = [_row(answer, "as it is", found.base)]
    rows += [_row(answer, trial.candidate.name, trial.outcome) for trial in found.trials]
    yield Grid(_HEADER, tuple(rows), "lrrrl")


def _cards(answer: Answer) -> Iterator[Block]:
    # The first is in the table of settings.
    shown = answer.cards if answer.settings is None else answer.cards[1:]
    if not shown:
        return
    yield Heading("On other cards" if answer.settings else "On", level=3)
    rows = [row for card in shown for row in _rows_of_card(answer, *card)]
    yield Grid(_HEADER, tuple(rows), "lrrrl")


def _rows_of_card(
    answer: Answer, place: Place, plain: Outcome, chosen: Outcome | None
) -> Iterator[tuple[str, ...]]:
    yield _row(answer, place.label, plain)
    if chosen is not None and answer.chosen is not None:
        yield _row(answer, f"  with {answer.chosen.name}", chosen)


def _row(answer: Answer, name: str, outcome: Outcome) -> tuple[str, ...]:
    end = "fits"
    if not outcome.fits:
        end = f"out of memory {answer.where(outcome)}, asked for {format_bytes(outcome.failed_bytes)}"
    numbers = (f"{outcome.n_segments:,}", f"{outcome.n_retries:,}")
    return name, format_bytes(outcome.peak_reserved), *numbers, end


def _batch(answer: Answer) -> Iterator[Block]:
    fit = answer.batch
    yield Heading("Another batch", level=3)
    if fit.problem:
        yield Text(fit.problem, "quiet" if fit.model is None else "note")
    if fit.model is None:
        return
    sizes = sorted({*fit.sizes, 2 * fit.sizes[-1], fit.largest})
    found = [(size, fit.at(size)) for size in sizes]
    rows = tuple(
        (
            f"{size:,}" + (" (seen)" if size in fit.sizes else ""),
            format_bytes(each.likely),
            f"± {format_bytes(each.high - each.likely)}",
            "" if each.reserved is None else format_bytes(each.reserved),
            each.phase.name.lower(),
        )
        for size, each in found
        if each is not None
    )
    yield Grid((fit.unit, "peak allocated", "", "reserved", "in"), rows, "rrrrl")
    for place in answer.places:
        yield Text(_largest(answer, place))


def _largest(answer: Answer, place: Place) -> str:
    largest = answer.batch.fitting(answer.left_of(place.total_bytes))
    if largest is None or not largest.size:
        return f"on {place.label} not even the smallest size fits"
    at_least = "at least " if largest.is_limited_by_data else ""
    why = ": the data carry no further" if largest.is_limited_by_data else ", if nothing is lost to pieces"
    return f"on {place.label} fits {at_least}{largest.size:,} ({answer.batch.unit}){why}"


def _strategies(found: Strategies) -> Iterator[Block]:
    phase = found.phase.name.lower().replace("_", " ")
    place = f" in {phase}" if found.phase else ""
    yield Heading(f"What else would lower the peak of {format_bytes(found.peak_bytes)}{place}", level=3)
    if not found.advised:
        known = found.unknown_bytes < found.peak_bytes
        yield Text(
            "nothing that was tried" if known else "no categories are known, so nothing can be tried", "quiet"
        )
        return
    rows = tuple(
        (
            f"−{format_bytes(each.saved_bytes)}",
            format_bytes(each.peak_bytes),
            each.name,
            each.how,
            each.cost,
            each.basis.partition(":")[0],
        )
        for each in found.advised
    )
    yield Grid(("saves", "leaves", "", "how", "what it costs", "these bytes are"), rows, "rrllll")
    if found.path:
        yield Text(found.path)
    if found.without_effect:
        yield Text(f"no effect on the peak: {', '.join(found.without_effect)}", "quiet")
