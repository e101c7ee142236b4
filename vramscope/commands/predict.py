"""Will it fit? A program's own training steps, run dry: no GPU, no computing, nothing loaded or saved."""

import json
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramscope.commands import Command
from vramscope.errors import VramscopeError

if TYPE_CHECKING:
    from vramscope.commands._document import Block
    from vramscope.dry_run import Prediction


def arguments(parser: ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.usage = (
        "vramscope predict [options] SCRIPT [ARGUMENTS…]  |  vramscope predict [options] -m MODULE …"
    )
    parser.add_argument("--card", metavar="NAME", default="H100", help="the card to predict for (H100)")
    parser.add_argument("--capacity", metavar="SIZE", help="bytes of the card, instead of what it has")
    parser.add_argument(
        "--steps", metavar="N", type=int, default=3, help="stop after so many optimizer steps (3)"
    )
    parser.add_argument(
        "--ranks", metavar="N", type=int, help="ranks of a program on several cards; the first is predicted"
    )
    parser.add_argument("--output", metavar="DIR", help="where the recording goes (a temporary folder)")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("-m", dest="is_module", action="store_true", help="a module, as python -m")
    parser.add_argument("program", nargs=REMAINDER, help="the script and its arguments")


def run(args: Namespace) -> int:
    """Run the program dry and print what it would need; return the exit code."""
    from vramscope.commands import _script
    from vramscope.commands._document import print_terminal
    from vramscope.dry_run import answer, dry_run

    program, given = _script.chosen(args.program, "predict", is_module=args.is_module)
    dry = dry_run(args.card, args.capacity, args.steps, args.output, args.ranks)
    # What the program prints is not the answer: with --json it would spoil it.
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        dry.do(lambda: _script.execute(program, given[1:]))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise VramscopeError(
                f"{given[0]} ended by itself ({end.code}) before it could be predicted"
            ) from None
    except Exception as error:
        raise VramscopeError(_refusal(given[0], error)) from error
    finally:
        sys.stdout = stdout
    found = answer(dry)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print_terminal(list(_page(found)))
    return 0


def _refusal(script: str, error: Exception) -> str:
    """One sentence: what the program needs that a dry run does not have."""
    text = " ".join(str(error).split())[:300] or "no message"
    where = _line(error)
    at = f" at {where}" if where else ""
    if isinstance(error, FileNotFoundError):
        return f"{script} cannot run dry{at}: it needs a file that is not there ({text})"
    if isinstance(error, ConnectionError) or "a dry run opens no connection" in text:
        return f"{script} cannot run dry{at}: it needs the network ({text}); give it local files"
    if isinstance(error, ModuleNotFoundError):
        return f"{script} cannot run dry{at}: {text}; install it where vramscope runs"
    return f"{script} cannot run dry{at}: {type(error).__name__}: {text}"


def _line(error: Exception) -> str:
    """The innermost line of the program itself."""
    from vramscope.capture.predicted import own_line_of

    return own_line_of(error.__traceback__)


def _page(found: "Prediction") -> Iterator["Block"]:
    from vramscope.commands._document import Heading, Text
    from vramscope.dry_run import sentence
    from vramscope.units import format_bytes

    yield Heading(sentence(found))
    if found.out_of_memory is not None:
        where = found.out_of_memory or "a line that is not known"
        yield Text(f"memory runs out at {where}", "error")
    at = ", ".join(
        part for part in (f"step {found.step}" if found.step is not None else "", found.phase or "") if part
    )
    if at:
        yield Text(f"the peak is reached in {at}")
    words = {
        "checked": "checked: every operator met is one whose memory on CUDA is known and tested",
        "estimate": "an estimate, because:",
        "cannot_tell": "not known exactly; the figures are lower bounds, because:",
    }
    yield Text(words[found.certainty], "plain" if found.certainty == "checked" else "warning")
    for reason in found.reasons[:8]:
        yield Text(f"  {reason}", "quiet")
    if len(found.reasons) > 8:
        yield Text(f"  and {len(found.reasons) - 8} more (--json has all)", "quiet")
    low, high = found.range_bytes
    if found.certainty == "estimate" and high is not None and high > low:
        yield Text(f"peak allocated between {format_bytes(low)} and {format_bytes(high)}")
    yield Text(f"vramscope report {found.run}    what takes the memory, by line", "quiet")


COMMAND = Command("predict", "will it fit? a script's training steps, run dry without a GPU", arguments, run)
