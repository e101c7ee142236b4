"""Will it fit? A program's own training steps, run dry: no GPU, no computing, nothing loaded or saved."""

import json
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vramscope.commands import Command
from vramscope.commands._waiting import progress
from vramscope.errors import UsageError, VramscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramscope.analysis.summary import Summary
    from vramscope.prediction import Prediction
    from vramscope.prediction.children import DryTrial
    from vramscope.prediction.largest import LargestSize
    from vramscope.prediction.on_cards import OnCard
    from vramscope.prediction.sizes import Size

_UNLIMITED_BYTES = 1 << 50


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``vramscope predict`` to *parser*."""
    parser.usage = (
        "vramscope predict [options] SCRIPT [ARGUMENTS…]  |  vramscope predict [options] -m MODULE …"
    )
    parser.add_argument("--card", metavar="NAME", default="H100", help="the card to predict for (H100)")
    parser.add_argument("--capacity", metavar="SIZE", help="bytes of the card, instead of what it has")
    parser.add_argument(
        "--cards", action="store_true", help="run it dry for every card that one run does not decide"
    )
    parser.add_argument(
        "--largest",
        metavar="NAME[=START]",
        action="append",
        default=[],
        help="search the largest value of this argument of the program that fits; {NAME} marks another place",
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, default=3, help="stop after so many optimizer steps (3)"
    )
    parser.add_argument(
        "--ranks", metavar="N", type=int, help="ranks of a program on several cards; the first is predicted"
    )
    parser.add_argument("--output", metavar="DIR", help="where the recording goes (a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one object, for machines")
    parser.add_argument("-m", dest="is_module", action="store_true", help="a module, as python -m")
    parser.add_argument("program", nargs=REMAINDER, help="the script and its arguments")


def run(args: Namespace) -> int:
    """Run the program dry and print what it would need; return the exit code."""
    from vramscope.prediction import card_of, script
    from vramscope.prediction.children import DryTrial, import_torch
    from vramscope.prediction.sizes import asked_size, without_placeholders

    program, given = script.chosen(args.program, "predict", is_module=args.is_module)
    import_torch()
    card_of(args.card, args.capacity)
    if args.steps < 1:
        raise UsageError("--steps: at least 1")
    if args.ranks is not None and args.ranks < 1:
        raise UsageError("--ranks: at least 1")
    sizes = [asked_size(each, given[1:], given[0]) for each in args.largest]
    sizes = [replace(each, template=tuple(without_placeholders(sizes, each.template))) for each in sizes]
    trial = DryTrial(
        program,
        (given[0], *given[1:]),
        args.card,
        args.capacity,
        args.steps,
        args.output,
        ranks=args.ranks,
        is_quiet=False,
    )
    try:
        return _search(args, trial, sizes) if sizes else _predict(args, trial)
    except KeyboardInterrupt:
        print("vramscope: stopped; nothing was predicted", file=sys.stderr)
        return 130


def _predict(args: Namespace, trial: "DryTrial") -> int:
    from vramscope.prediction.children import run_dry

    found = run_dry(trial)
    if not found.peak_allocated_bytes and found.out_of_memory is None:
        text = f"{trial.given[0]} put nothing on the card, so there is nothing to predict: it never uses cuda"
        raise VramscopeError(f"{text}, ended early (see what it printed), or needs several cards: --ranks N")
    whole = None
    if found.out_of_memory is not None:
        # How much it would need: the same card, with memory without end.
        whole = run_dry(replace(trial, capacity=_UNLIMITED_BYTES, output=None, is_quiet=True))
    # Only now: what makes answers is imported while the program runs.
    from vramscope.analysis.summary import summarize
    from vramscope.commands._document import print_terminal
    from vramscope.commands._predict_page import page

    cards = _cards(trial, found, whole, has_own_runs=args.cards)
    summary = summarize(found.recording)
    if args.json:
        print(json.dumps(as_json(found, whole, cards, summary), indent=2))
    else:
        print_terminal(list(page(found, whole, cards, summary)))
    return 0


def _cards(
    trial: "DryTrial", found: "Prediction", whole: "Prediction | None", *, has_own_runs: bool
) -> "tuple[OnCard, ...]":
    from vramscope.prediction import known_cards, room_of
    from vramscope.prediction.children import run_all_dry
    from vramscope.prediction.on_cards import on_cards, own_verdict

    cards = list(found.cards)
    if whole is not None:
        own = room_of(trial.card, trial.capacity)
        cards = list(on_cards(whole.need, own, found.fits, known_cards()))
    if not has_own_runs:
        return tuple(cards)
    open_ones = [number for number, card in enumerate(cards) if card.fits is None and not card.is_own_run]
    trials = [
        replace(trial, card=cards[number].card, capacity=None, output=None, is_quiet=True)
        for number in open_ones
    ]
    rooms = {room.name: room for room in known_cards()}
    for done, (which, answer) in enumerate(run_all_dry(trials), start=1):
        number = open_ones[which]
        if not isinstance(answer, VramscopeError):
            cards[number] = own_verdict(answer.need, rooms[answer.card], answer.fits)
        progress(f"cards: {done} of {len(trials)}")
    return tuple(cards)


# ------------------------------------------------------------------------------------ the largest


def _search(args: Namespace, trial: "DryTrial", sizes: "Sequence[Size]") -> int:
    from vramscope.commands._document import print_terminal
    from vramscope.commands._predict_page import largest_page
    from vramscope.prediction import room_of
    from vramscope.units import format_bytes

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


def _searched(trial: "DryTrial", size: "Size", room_bytes: int) -> "tuple[LargestSize, bool]":
    """Return what the dry runs found, and whether Ctrl-C stopped them."""
    from vramscope.prediction.children import run_dry
    from vramscope.prediction.largest import LargestSize, SizeTrial, search_largest
    from vramscope.units import format_bytes

    latest = [LargestSize(())]

    def tried(value: int) -> SizeTrial:
        asked = replace(trial.with_arguments(size.arguments(value)), output=None, is_quiet=True)
        try:
            found = run_dry(asked)
        except VramscopeError as error:
            return SizeTrial(value, None, 0, str(error))
        word = {True: "fits", False: "does not fit", None: "cannot tell"}[found.fits]
        progress(f"{size.name} {value:,}: {word}, {format_bytes(found.peak_reserved_bytes)} reserved")
        return SizeTrial(value, found.fits, found.peak_reserved_bytes)

    def note(found: LargestSize) -> None:
        latest[0] = found

    try:
        return search_largest(size.value, room_bytes, tried, note), False
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


# ------------------------------------------------------------------------------------- for machines


def as_json(
    found: "Prediction", whole: "Prediction | None", cards: "Sequence[OnCard]", summary: "Summary"
) -> dict[str, Any]:
    """Return schema 1, to which fields are only ever added."""
    from vramscope.commands._predict_page import by_module
    from vramscope.commands.report import live_as_json

    unlimited = None
    if whole is not None:
        names = ("peak_allocated_bytes", "peak_reserved_bytes", "phase", "step")
        unlimited = {name: getattr(whole, name) for name in names}
    return found.to_json() | {
        "without_limit": unlimited,
        "cards": [asdict(each) for each in cards],
        "live_at_peak": live_as_json(summary),
        "categories_at_peak": summary.categories,
        "modules_at_peak": dict(by_module(summary)),
    }


COMMAND = Command("predict", "will it fit? a script's training steps, run dry without a GPU", arguments, run)
