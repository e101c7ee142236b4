"""The option ``--wait`` of the commands that ask a running process."""

from argparse import ArgumentParser, ArgumentTypeError

_MOST_S = 86_400


def add_wait(parser: ArgumentParser) -> None:
    """Add ``--wait SECONDS`` to *parser*."""
    of_a_moment = "for a moment between two calls (30)"
    parser.add_argument("--wait", type=_seconds, metavar="SECONDS", help=of_a_moment)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _MOST_S:  # not a number is neither
        raise ArgumentTypeError(f"a number of seconds from 0 to {_MOST_S:,}, not {text[:40]!r}")
    return found
