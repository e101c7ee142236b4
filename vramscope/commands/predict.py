"""Will it fit? A program's own training steps, run dry: no GPU, no computing, nothing loaded or saved."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vramscope.commands import described
from vramscope.commands._crew import progress
from vramscope.commands._document import print_answer, print_terminal
from vramscope.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramscope.analysis.summary import Summary
    from vramscope.prediction import Prediction, Trial
    from vramscope.prediction.largest import LargestSize
    from vramscope.prediction.sizes import Size


def run(args: Namespace) -> int:
    """Run the program dry and print what it would need; return the exit code."""
    from vramscope.prediction import script
    from vramscope.prediction.children import import_torch
    from vramscope.prediction.sizes import asked_size, without_placeholders
    from vramscope.prediction.trial import Trial

    program, (name, *arguments) = script.chosen(args.program, "predict", is_module=args.is_module)
    trial = Trial(
        *(args.card, args.capacity, args.steps, args.ranks, args.output, name),
        program,
        tuple(arguments),
        is_quiet=False,
        is_as_cuda=args.as_cuda,
    )
    import_torch()
    trial.check()
    sizes = [asked_size(each, arguments, name) for each in args.largest]
    sizes = [replace(each, template=tuple(without_placeholders(sizes, each.template))) for each in sizes]
    try:
        return _search(args, trial, sizes) if sizes else _predict(args, trial)
    except KeyboardInterrupt:
        print("vramscope: stopped; nothing was predicted", file=sys.stderr)
        return 130


def _predict(args: Namespace, trial: "Trial") -> int:
    from vramscope.prediction.children import on_each_card, run_dry

    found = run_dry(trial, _import_page)
    if args.cards:
        found = on_each_card(found, trial, lambda n, of: progress(f"cards: {n} of {of}"))
    from vramscope.analysis.summary import summarize
    from vramscope.commands._predict_page import page

    summary = summarize(found.recording)
    return print_answer(args, lambda: as_json(found, summary), page(found, summary))


def _import_page() -> None:
    """Import what the page is made of, while the program runs."""
    import vramscope.commands._predict_page  # noqa: F401


def _search(args: Namespace, trial: "Trial", sizes: "Sequence[Size]") -> int:
    from vramscope.commands._predict_page import largest_page
    from vramscope.prediction.trial import room_of

    room = room_of(args.card, args.capacity)
    card = f"the {room.name} ({format_bytes(room.total_bytes)})"
    answers, is_stopped = [], False
    for size in sizes:
        found, is_stopped = _searched(trial, size, room.room_bytes)
        answers.append((size, found))
        if not args.json:
            print_terminal(list(largest_page(size, found, card, is_stopped=is_stopped)))
        if is_stopped:
            break
    if args.json:
        print(json.dumps(_largest_as_json(answers, room.name, room.total_bytes), indent=2))
    if is_stopped:
        return 130
    return 1 if any(found.problem for _, found in answers) else 0


def _searched(trial: "Trial", size: "Size", room_bytes: int) -> "tuple[LargestSize, bool]":
    """Return what the dry runs say, and whether Ctrl-C stopped them."""
    from vramscope.model.prediction import FITS_WORD
    from vramscope.prediction.children import run_dry
    from vramscope.prediction.largest import LargestSize, largest_of

    latest = [LargestSize(())]

    def answer(value: int) -> "Prediction":
        arguments = tuple(size.arguments(value))
        quiet = replace(trial, arguments=arguments, directory=None, is_quiet=True, measures_need=False)
        return run_dry(quiet)

    def note(found: LargestSize) -> None:
        latest[0] = found
        last = found.trials[-1]
        word = FITS_WORD[last.fits]
        if not last.problem:
            progress(f"{size.name} {last.size:,}: {word}, {format_bytes(last.peak_reserved_bytes)} reserved")

    try:
        return largest_of(answer, size.value, room_bytes, note), False
    except KeyboardInterrupt:
        return latest[0], True
    finally:
        progress("")


def _largest_as_json(
    answers: "Sequence[tuple[Size, LargestSize]]", card: str, capacity_bytes: int
) -> dict[str, Any]:
    return {
        "schema": 1,
        "card": card,
        "capacity_bytes": capacity_bytes,
        "largest": [
            {
                "name": size.name,
                "fits": found.fitting,
                "does_not_fit": found.too_large,
                "is_exact": found.is_exact,
                "is_monotonic": not found.contradictions,
                "problem": found.problem or None,
                "trials": [asdict(each) for each in found.trials],
            }
            for size, found in answers
        ],
    }


def as_json(found: "Prediction", summary: "Summary") -> dict[str, Any]:
    """Return schema 1, to which fields are only ever added."""
    from vramscope.commands._predict_page import by_module
    from vramscope.commands._report_json import live_as_json

    return found.to_json() | {
        "live_at_peak": live_as_json(summary),
        "categories_at_peak": summary.categories,
        "modules_at_peak": dict(by_module(summary)),
    }


COMMAND = described("predict", run)
