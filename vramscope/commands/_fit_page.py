"""The page of ``vramscope fit``: the answer first, then the figures it is based on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vramscope.analysis.fit import BASIS
from vramscope.analysis.fit.answer import (
    Effect,
    FitAnswer,
    FitVerdict,
    Placed,
    Rerun,
    Reruns,
    differs_from_recorded,
)
from vramscope.analysis.strategies import NOT_ESTIMATED, Strategies
from vramscope.analysis.what_if import ReplayResult
from vramscope.commands._document import Block, Grid, Heading, Text
from vramscope.model.cards import BASIS as CARDS_BASIS
from vramscope.model.cards import Card
from vramscope.model.prediction import FITS_WORD, Prediction
from vramscope.units import (
    format_byte_range,
    format_bytes,
    format_least,
    format_most,
    format_name,
    format_share,
)

_NOTABLE = 0.02
"""Share by which a dry run is off the recorded peak before the answer states it."""
_HEADER = ("", "peak reserved", "cudaMalloc calls", "retries", "")


def page(answers: Sequence[FitAnswer], name: str) -> Iterator[Block]:
    """Yield the whole page: the fullest device, and a line for each of the others."""
    answer = answers[0]
    yield Heading(f"{name}: what would fit", level=1)
    which = f"rank {answer.rank}, device {answer.device}: " if len(answers) > 1 else ""
    yield Text(f"{which}{_verdict(answer)}")
    if answer.limit_words:
        yield Text(answer.limit_words, "note")
    yield from _to_do(answer)
    if answer.as_recorded is not None and answer.recorded_peak_bytes and not answer.is_reproduced:
        sizes = answer.as_recorded.peak_reserved_bytes, answer.recorded_peak_bytes
        replayed, recorded = map(format_bytes, sizes)
        yield Text(
            f"an estimate: under the recorded circumstances the replay reserves {replayed} at most; "
            f"{recorded} were recorded",
            "note",
        )
    yield Text(_smallest(answer))
    if answer.growth:
        yield Text(answer.growth, "note")
    is_said = answer.prediction is not None or (answer.placed and answer.ending == answer.placed[0].reason)
    if answer.ending and not is_said:
        rest = ": settings, batches and savings rest on those that have" if answer.is_peak_counted else ""
        yield Text(f"{answer.ending}{rest}", "note")
    yield from _other_devices(answers[1:])
    yield from _settings(answer)
    yield from _cards(answer)
    yield from _batch(answer)
    if answer.reruns is not None:
        yield from _reruns(answer.reruns, answer.recorded_allocated_bytes)
    if answer.strategies is not None:
        yield from _strategies(_not_run(answer.strategies, answer.reruns), is_whole=not answer.ending)
        if answer.reruns is None:
            yield Text(NOT_ESTIMATED, "quiet")
    yield Heading("What this rests on", level=3)
    yield Text(f"{_outside(answer)}; {BASIS}; {CARDS_BASIS}", "quiet")


def _outside(answer: FitAnswer) -> str:
    if answer.is_simulated and not answer.is_outside_measured:
        assumed = format_bytes(answer.outside_bytes)
        return f"nothing lies outside of the allocator of a simulated device; {assumed} are assumed on a card"
    how = "measured" if answer.is_outside_measured else "assumed: the recording does not say"
    return f"{format_bytes(answer.outside_bytes)} of a card outside of the allocator ({how})"


def _verdict(answer: FitAnswer) -> str:
    """Return the first line: does it fit, and what helps."""
    if not answer.placed:
        return _without_a_device(answer)
    here, predicted = answer.placed[0], answer.prediction
    if predicted is not None and predicted.need.allocated_bytes > here.room_bytes:
        return f"{_predicted(predicted, here)}; no setting makes it fit"
    sentence = _replayed(answer, here) if predicted is None else _predicted(predicted, here)
    helps = _what_helps(answer, here)
    return f"{sentence}; {helps}" if helps else sentence


def _predicted(prediction: Prediction, here: Placed) -> str:
    """Return the verdict of a dry run, with what the program needs without a limit."""
    label = here.target.label
    verdict = {
        FitVerdict.TOO_SMALL: f"Does not fit {label}",
        FitVerdict.UNKNOWN: f"Whether it fits {label} is not known: {here.reason}",
    }.get(here.verdict, f"Fits {label}")
    return f"{verdict}; by a dry run, {prediction.needs}"


def _replayed(answer: FitAnswer, here: Placed) -> str:
    plain, label = here.plain, _place(answer, here)
    if here.verdict is FitVerdict.UNKNOWN:
        recorded = format_bytes(answer.recorded_peak_bytes or plain.peak_reserved_bytes)
        needs = f"what was recorded needs {recorded} reserved"
        return f"Whether it fits {label} is not known: {here.reason}; {needs}"
    if here.verdict is FitVerdict.TOO_SMALL:
        return f"Does not fit {label}: {_too_small(answer, here)}"
    if here.verdict is FitVerdict.TIGHT:
        return f"Just fits {label}: the whole cache is released {_times(plain)} to make room"
    needed = max(plain.peak_reserved_bytes, answer.recorded_peak_bytes if answer.is_peak_counted else 0)
    spare = format_least(max(here.room_bytes - needed, 0))
    return f"Fits {label}: at most {format_most(needed)} reserved, {spare} to spare"


def _place(answer: FitAnswer, here: Placed) -> str:
    """Return the words for a device, or for what the program allows itself of it."""
    allowed = answer.allowed_on(here.target)
    return f"{format_bytes(allowed)} of {here.target.label}" if allowed else here.target.label


def _too_small(answer: FitAnswer, here: Placed) -> str:
    plain = here.plain
    if not plain.fits:
        return (
            f"out of memory {_where(answer, plain)}, tried to allocate "
            f"{format_bytes(plain.failed_bytes)} with {format_bytes(plain.failed_requested_bytes)} in use"
        )
    if answer.has_failed_on(here.target):
        return "memory ran out there when it was recorded"
    return f"{format_bytes(answer.recorded_allocated_bytes)} were allocated when it was recorded"


def _where(answer: FitAnswer, outcome: ReplayResult) -> str:
    return "" if outcome.failed_at is None else answer.moments.get(outcome.failed_at, "")


def _times(outcome: ReplayResult) -> str:
    return "once" if outcome.n_retries == 1 else f"{outcome.n_retries} times"


def _what_helps(answer: FitAnswer, here: Placed) -> str:
    plain, chosen, setting = here.plain, here.chosen, answer.chosen
    if setting is None or chosen is None:
        if here.verdict is FitVerdict.TOO_SMALL:
            # A request that fails under every setting; others were not compared.
            is_shown = answer.settings is not None and not answer.settings.base.fits
            return "no setting makes it fit" if is_shown else ""
        is_shown = answer.settings is not None and answer.settings.nothing_helps
        return "change nothing" if is_shown and here.verdict is not FitVerdict.UNKNOWN else ""
    name = setting.name
    if not chosen.fits:
        return f"with {name} it does not fit" if plain.fits else f"nor does it with {name}"
    if not plain.fits:
        released = f", with the cache released {_times(chosen)}" if chosen.n_retries else ""
        return f"with {name} it {'gets past that' if answer.ending else 'fits'}{released}"
    if chosen.n_retries != plain.n_retries:
        return f"with {name} {_times(chosen) if chosen.n_retries else 'never'}"
    saved = plain.peak_reserved_bytes - chosen.peak_reserved_bytes
    word = "less" if saved >= 0 else "more"
    return f"{name} reserves {format_bytes(abs(saved))} {word}" if saved else f"{name} changes nothing"


def _without_a_device(answer: FitAnswer) -> str:
    found = answer.settings.base if answer.settings else answer.as_asked or answer.as_recorded
    if found is None:
        return ""
    reserved, allocated = answer.recorded_peak_bytes, answer.recorded_allocated_bytes
    if answer.is_reproduced:
        reserved, allocated = found.peak_reserved_bytes, found.peak_allocated_bytes
    bound = "at least" if answer.is_open else "at most"
    sentence = f"Reserves {bound} {format_bytes(reserved)}, with {bound} {format_bytes(allocated)} allocated"
    if not found.fits:
        sentence = f"Ran out of memory {_where(answer, found)}"
    return f"{sentence}; {answer.settings.reason}" if answer.settings else sentence


def _to_do(answer: FitAnswer) -> Iterator[Block]:
    found = answer.settings
    if found is None or found.advised is None:
        return
    if found.environment:
        yield Text(f"set before the program starts:  {found.environment}")
    if found.advised.candidate.call:
        yield Text(f"and in the program:  {found.advised.candidate.call}")


def _smallest(answer: FitAnswer) -> str:
    plain, chosen = answer.smallest_card, answer.smallest_card_chosen
    if plain is None and answer.ending and answer.prediction is None:
        why = "the recording ends too early" if answer.until else "the recording is incomplete"
        return f"Smallest card that fits: not known, for {why}"
    sentence = f"Smallest card that fits: {_named(plain)}"
    if answer.chosen is None or chosen == plain or (chosen is None and answer.ending):
        return sentence
    return f"{sentence}; with {answer.chosen.name}: {_named(chosen)}"


def _named(card: Card | None) -> str:
    return "none that is known here" if card is None else f"{card.label} ({format_bytes(card.total_bytes)})"


def _other_devices(answers: Sequence[FitAnswer]) -> Iterator[Block]:
    if not answers:
        return
    yield Heading("The other devices", level=3)
    for answer in answers:  # settings are searched for the fullest device only
        recorded = f"{format_bytes(answer.recorded_peak_bytes)} reserved when it was recorded"
        verdict = answer.problem or (_replayed(answer, answer.placed[0]) if answer.placed else recorded)
        yield Text(f"rank {answer.rank}, device {answer.device}: {verdict[:1].lower()}{verdict[1:]}")


def _settings(answer: FitAnswer) -> Iterator[Block]:
    found = answer.settings
    place = f" on {_place(answer, answer.placed[0])}" if answer.placed else ""
    yield Heading(f"Settings of the allocator{place}", level=3)
    if found is None:
        if answer.setting is not None and answer.as_asked is not None:
            row = _row(answer, answer.setting.name, answer.as_asked)
            yield Grid(_HEADER, (row,), "lrrrl")
        return
    yield Text(found.reason)
    base, *more = _row(answer, "as it is", found.base)
    if answer.placed and found.base.fits:
        verdict = answer.placed[0].verdict
        words = {FitVerdict.UNKNOWN: "not known", FitVerdict.TOO_SMALL: "does not fit"}
        more[-1] = words.get(verdict, "fits" if verdict is FitVerdict.FITS else more[-1])
    rows: list[tuple[str, ...]] = [(base, *more)]
    rows += [_row(answer, trial.candidate.name, trial.outcome) for trial in found.trials]
    yield Grid(_HEADER, tuple(rows), "lrrrl")


def _cards(answer: FitAnswer) -> Iterator[Block]:
    # The first is in the table of settings.
    shown = answer.placed if answer.settings is None else answer.placed[1:]
    if not shown:
        return
    yield Heading("On other cards" if answer.settings else "On", level=3)
    rows = [row for card in shown for row in _rows_of_card(answer, card)]
    yield Grid(_HEADER, tuple(rows), "lrrrl")


def _rows_of_card(answer: FitAnswer, card: Placed) -> Iterator[tuple[str, ...]]:
    *numbers, end = _row(answer, _place(answer, card), card.plain)
    if answer.prediction is not None:
        end = {True: "fits", False: "does not fit", None: ""}[card.verdict.fits]
    fits = end or ("fits" if card.verdict is FitVerdict.FITS else "")
    yield (*numbers, f"not known: {card.reason}" if card.verdict is FitVerdict.UNKNOWN else fits)
    if card.chosen is not None and answer.chosen is not None:
        yield _row(answer, f"  with {answer.chosen.name}", card.chosen)


def _row(answer: FitAnswer, name: str, outcome: ReplayResult) -> tuple[str, ...]:
    end = "gets past the failed request" if answer.has_ended_short else ""
    if answer.placed and not answer.ending:
        end = "fits"
    if not outcome.fits:
        end = (
            f"out of memory {_where(answer, outcome)}, tried to allocate {format_bytes(outcome.failed_bytes)}"
        )
    calls = f"{outcome.n_segments - outcome.n_mappings:,}"
    calls = f"{outcome.n_mappings:,} mapped" if outcome.n_mappings else calls
    return name, format_bytes(outcome.peak_reserved_bytes), calls, f"{outcome.n_retries:,}", end


def _batch(answer: FitAnswer) -> Iterator[Block]:
    fit = answer.batch
    if fit is None:
        return
    yield Heading("Another batch", level=3)
    if fit.problem:
        yield Text(fit.problem, "quiet" if fit.model is None else "note")
    if fit.model is None:
        return
    rooms = [each.room_bytes for each in answer.placed[:1]]
    rows = tuple(
        (
            fit.named(size),
            format_bytes(each.likely_bytes),
            format_byte_range(each.low_bytes, each.high_bytes),
            "" if each.reserved_bytes is None else format_bytes(each.reserved_bytes),
            each.phase.name.lower(),
            *(FITS_WORD[each.fits(room)] for room in rooms),
        )
        for size, each in fit.rows()
    )
    header = ("batch", "peak allocated", "at least, at most", "reserved", "in", "")
    n_columns = 5 + len(rooms)
    yield Grid(header[:n_columns], rows, "rrrrll"[:n_columns])
    for place in answer.placed:
        yield Text(_largest(answer, place))


def _largest(answer: FitAnswer, place: Placed) -> str:
    assert answer.batch is not None  # noqa: S101 - for the type checker
    largest = answer.batch.fitting(place.room_bytes)
    if largest is None or not largest.size:
        return f"on {_place(answer, place)} not even the smallest size surely fits"
    at_least = "at least " if largest.is_limited_by_data else ""
    why = ": the data carry no further" if largest.is_limited_by_data else ", if nothing is lost to pieces"
    return f"on {_place(answer, place)} fits a batch of {at_least}{answer.batch.named(largest.size)}{why}"


def _reruns(found: Reruns, recorded_bytes: int) -> Iterator[Block]:
    yield Heading("Run again dry", level=3)
    if found.problem or found.plain is None:
        yield Text(f"not possible: {found.problem}", "warning")
        return
    allocated, reserved = map(format_bytes, (found.plain.allocated_bytes, found.plain.reserved_bytes))
    as_it_is = f"{allocated} allocated, {reserved} reserved as it is"
    yield Text(f"dry run of {found.command} on the {found.card}: {as_it_is}")
    off = differs_from_recorded(found, recorded_bytes)
    if off is not None and abs(off) >= _NOTABLE:
        yield Text(
            f"the dry run needs {format_share(abs(off), 1)} {'more' if off > 0 else 'less'} than the "
            f"{format_bytes(recorded_bytes)} that were recorded: "
            "the recorded run was not the same, or not on this card; compare dry runs with each other only",
            "warning",
        )
    rows = tuple(_rerun_row(found, row) for row in found.rows if row.peak is not None)
    yield Grid(("", "saves", "peak allocated", "reserved", "", "how"), rows, "lrrrll")
    for row in found.rows:
        if row.peak is None:
            yield Text(f"{row.name}: not run; {row.problem}", "quiet")
        elif found.effect(row) is Effect.UNKNOWN and row.peak.reason:
            yield Text(f"{row.name}: cannot tell; {row.peak.reason}", "quiet")
    if len(found.rows) < found.n_wanted:
        yield Text(f"stopped after {len(found.rows)} of {found.n_wanted} what-ifs", "note")


def _rerun_row(found: Reruns, row: Rerun) -> tuple[str, ...]:
    peak, saved = row.peak, found.saved_bytes(row)
    assert peak is not None  # noqa: S101 - for the type checker
    sign = {Effect.SAVES: "−", Effect.RAISES: "+"}.get(found.effect(row), "")
    saves = found.effect(row).value if not saved else f"{sign}{format_bytes(abs(saved))}"
    about = "" if peak.most_bytes == peak.allocated_bytes else "about "
    figures = peak.reached_allocated_bytes, peak.reached_reserved_bytes
    if peak.most_bytes is None:
        about, figures = "at least ", (peak.allocated_bytes, peak.reserved_bytes)
    return (
        row.name,
        saves,
        *(about + format_bytes(each) for each in figures),
        FITS_WORD[peak.fits],
        row.how,
    )


def _not_run(found: Strategies, reruns: Reruns | None) -> Strategies:
    """Leave out what was run dry: its estimate is of no use any more."""
    if reruns is None or reruns.plain is None:
        return found
    return replace(
        found,
        advised=tuple(each for each in found.advised if not reruns.answers(each.name)),
        undecided=tuple(each for each in found.undecided if not reruns.answers(each.name)),
        without_effect=tuple(each for each in found.without_effect if not reruns.answers(each)),
        path="",  # it names what is not in the table any more
    )


def _strategies(found: Strategies, *, is_whole: bool) -> Iterator[Block]:
    phase = format_name(found.phase)
    place = f" in {phase}" if found.phase else ""
    what = "the peak of" if is_whole else "what was recorded, a peak of"
    what = "what was allocated when it failed," if found.is_partial else what
    yield Heading(f"What else would lower {what} {format_bytes(found.peak_bytes)}{place}", level=3)
    if not found.advised:
        known = found.unknown_bytes < found.peak_bytes
        yield Text(
            "nothing that was tried" if known else "no categories are known, so nothing can be tried", "quiet"
        )
    else:
        yield Grid(
            ("saves", "leaves", "at least, at most", "", "how", "what it costs", "these bytes are"),
            tuple(
                (
                    f"−{format_bytes(each.saved_bytes)}",
                    format_bytes(each.peak_bytes),
                    format_byte_range(each.low_bytes, each.high_bytes),
                    each.name,
                    each.how,
                    each.cost,
                    each.basis.partition(":")[0],
                )
                for each in found.advised
            ),
            "rrrllll",
        )
        if found.path:
            yield Text(found.path)
    if found.open_words:
        yield Text(found.open_words, "quiet")
    if found.without_effect:
        yield Text(f"does not lower the peak: {', '.join(found.without_effect)}", "quiet")
