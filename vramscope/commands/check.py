"""Checks a run against limits, for CI: the exit code is 3 if one is exceeded, or cannot be judged."""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.errors import UsageError
from vramscope.units import format_bytes, parse_bytes, printable

if TYPE_CHECKING:
    from vramscope.analysis.compare import Change
    from vramscope.model.recording import Recording, Run

_FORBIDDEN = 3


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """The result of one limit for one recording."""

    limit: str
    """``max_peak``, ``max_reserved``, ``max_fragmentation`` or ``max_growth``."""
    rank: int
    device: int
    passed: bool
    text: str
    """The value found, the limit, and where the value occurred."""
    value: float
    """The value in bytes; for fragmentation and growth a percentage."""
    allowed: float
    is_decided: bool = True
    """False where the recording lacks what decides: the value is then a lower bound, or not known."""
    reason: str = ""
    """Why it is not decided; '' where it is."""


def run(args: Namespace) -> int:
    """Check the limits; return 3 if one is exceeded, or cannot be judged."""
    from vramscope.loading import load

    limits = _limits(args)
    if args.junit and not args.force and Path(args.junit).exists():
        raise UsageError(f"{args.junit} exists; --force overwrites it")
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
        base = load(args.against) if args.against else None
        verdicts = [*_held(loaded, limits), *_grown(base, loaded, limits)]
        verdicts = _gated(loaded, verdicts, allows_incomplete=args.allow_incomplete)
    if not verdicts:
        raise UsageError(f"{args.path}: it has no recording to check")
    if args.junit:
        Path(args.junit).write_text(junit(verdicts), encoding="utf-8")
    if args.json:
        print(json.dumps({"schema": 1, "checks": [asdict(verdict) for verdict in verdicts]}, indent=2))
    else:
        _print(verdicts)
    return 0 if all(verdict.passed for verdict in verdicts) else _FORBIDDEN


def _limits(args: Namespace) -> dict[str, float]:
    """Return the limits by name. Raises UsageError if there is none, or one is not plausible."""
    limits: dict[str, float] = {}
    for name in ("max_peak", "max_reserved"):
        text = getattr(args, name)
        if text is not None:
            try:
                limits[name] = parse_bytes(text)
            except ValueError as error:
                raise UsageError(f"--{name.replace('_', '-')}: {error}") from None
    if args.max_fragmentation is not None:
        limits["max_fragmentation"] = args.max_fragmentation
    if args.max_growth is not None and not args.against:
        raise UsageError("--max-growth needs --against BASE")
    if args.against:
        limits["max_growth"] = 1.0 if args.max_growth is None else args.max_growth
    if not limits:
        raise UsageError(
            "nothing to check: give --max-peak, --max-reserved, --max-fragmentation or --against"
        )
    if any(not limit >= 0 for limit in limits.values()):
        raise UsageError("a limit cannot be below 0")
    return limits


def _gated(run: "Run", verdicts: list[LimitCheck], *, allows_incomplete: bool) -> list[LimitCheck]:
    """Return the same, where no limit passes that the recordings do not decide; a broken one is broken."""
    from vramscope.analysis.verdicts.missing import missing_ranks

    ranks = "; ".join(each.text for each in missing_ranks(run))
    known = [
        replace(each, is_decided=False, reason=ranks) if ranks and each.passed else each for each in verdicts
    ]
    return [each if each.is_decided or allows_incomplete else replace(each, passed=False) for each in known]


def _held(run: "Run", limits: dict[str, float]) -> Iterator[LimitCheck]:
    quantities = {"max_peak": "allocated", "max_reserved": "reserved"}
    for recording in run.recordings:
        for limit, quantity in quantities.items():
            if limit in limits:
                yield _most(recording, limit, quantity, limits[limit])
        if "max_fragmentation" in limits:
            yield _fragmented(recording, limits["max_fragmentation"])


def _most(recording: "Recording", limit: str, quantity: str, allowed: float) -> LimitCheck:
    from vramscope.analysis.peak import peak

    if not _has_events(recording):
        return _sampled(recording, limit, quantity, allowed)
    high = peak(recording).highest(quantity)
    at = "" if high.step is None else f" in step {high.step}"
    at += f" in {high.phase_words}" if high.phase_words else ""
    # What the program did before is not in the recording, and no limit is about it.
    at += " since the recording began" if len(recording.initial.segments) else ""
    reason = _undecided(recording)
    bound = "at least " if reason else ""
    text = f"{bound}{format_bytes(high.n_bytes)} {quantity}{at}, {format_bytes(allowed)} allowed"
    return _verdict(recording, limit, text, (high.n_bytes, allowed), reason)


def _sampled(recording: "Recording", limit: str, quantity: str, allowed: float) -> LimitCheck:
    """Check a limit with sampled counters.

    Between two samples there may have been more, unless torch's own peak was sampled.
    """
    from vramscope.analysis.sampled_peaks import sampled_peaks

    found = sampled_peaks(recording)
    most = int(getattr(found, f"{quantity}_bytes"))
    if most < 0:
        return _unknown(recording, limit, f"no sample of {quantity} bytes was recorded", allowed)
    is_exact = quantity == "allocated" and found.is_exact
    reason = _undecided(recording)
    if not is_exact:
        reason = reason or "between two samples there may have been more"
    bound = "at least " if reason else ""
    text = f"{bound}{format_bytes(most)} {quantity} (sampled), {format_bytes(allowed)} allowed"
    return _verdict(recording, limit, text, (most, allowed), reason)


def _fragmented(recording: "Recording", allowed: float) -> LimitCheck:
    from vramscope.analysis.fragmentation import fragmentation

    limit = "max_fragmentation"
    if not _has_events(recording):
        return _unknown(recording, limit, "fragmentation needs the allocator's events", allowed)
    found = fragmentation(recording)
    reserved = int(found.parts.reserved_bytes[found.worst])
    percent = 100 * found.unusable_bytes / reserved if reserved else 0.0
    at = "" if found.step is None else f" in step {found.step}"
    text = (
        f"{percent:.1f} % of {format_bytes(reserved)} reserved were free pieces of segments in use{at} "
        f"({format_bytes(found.unusable_bytes)}), {allowed:g} % allowed"
    )
    return _verdict(recording, limit, text, (percent, allowed), _undecided(recording))


def _grown(base: "Run | None", run: "Run", limits: dict[str, float]) -> Iterator[LimitCheck]:
    from vramscope.commands._pairs import alone, pairs

    if base is None:
        return
    allowed = limits["max_growth"]
    for before, after in pairs(base, run):
        yield _growth(before, after, allowed)
    for after in alone(base, run)[1]:
        yield _unknown(after, "max_growth", "the earlier run does not have this rank and device", allowed)


def _growth(before: "Recording", after: "Recording", allowed: float) -> LimitCheck:
    from vramscope.analysis.compare import compare

    if not (_has_events(before) and _has_events(after)):
        return _unknown(after, "max_growth", "both need events to be compared", allowed)
    comparison = compare(before, after)
    old, new = comparison.peak_before_bytes, comparison.peak_after_bytes
    percent = 100 * (new - old) / old if old else (100.0 if new else 0.0)
    grown = [change for change in comparison.of("line") if change.n_bytes > 0][:3]
    lines = "; ".join(_grown_line(change) for change in grown)
    text = (
        f"peak {format_bytes(new)}, {percent:+.2f} % against {format_bytes(old)}, {allowed:g} % allowed"
        + (f"; {lines}" if percent > allowed and lines else "")
    )
    of_base = _undecided(before)
    if of_base:
        return _unknown(after, "max_growth", f"of the earlier run {of_base}", allowed)
    return _verdict(after, "max_growth", text, (percent, allowed), _undecided(after))


def _grown_line(change: "Change") -> str:
    module = f" [{change.module}]" if change.module else ""
    where = " outside of steps" if change.is_outside and not change.n_steps else ""
    return f"+{format_bytes(change.n_bytes)} {change.name}{module}{where}"


def _has_events(recording: "Recording") -> bool:
    from vramscope.analysis.summary import has_allocator

    is_empty = not len(recording.trace) and not len(recording.initial.segments)
    return not is_empty and has_allocator(recording)


def _undecided(recording: "Recording") -> str:
    """Return why more may have been needed than the recording shows, as a clause; '' if that is certain."""
    from vramscope.analysis.verdicts import Verdict, why_not
    from vramscope.analysis.verdicts.missing import missing_parts

    return why_not(missing_parts(recording), Verdict.LIMIT)


def _verdict(
    recording: "Recording", limit: str, text: str, values: tuple[float, float], reason: str
) -> LimitCheck:
    """Return the result of a limit; *values* are the one that occurred and the one that is allowed.

    What breaks a limit although something is missing (*reason*) breaks it for certain.
    """
    rank, device = recording.process.rank, recording.device.index
    value, allowed = values
    passed = value <= allowed
    reason = reason if passed else ""
    return LimitCheck(limit, rank, device, passed, text, value, allowed, not reason, reason)


def _unknown(recording: "Recording", limit: str, why: str, allowed: float) -> LimitCheck:
    """Return a failed result: an unknown value does not pass."""
    rank, device = recording.process.rank, recording.device.index
    text = f"not known: {why}"
    return LimitCheck(limit, rank, device, False, text, -1, allowed, False, why)


def _print(verdicts: list[LimitCheck]) -> None:
    for verdict in verdicts:
        print(f"{_word(verdict)}  {_name(verdict)}: {printable(_whole_text(verdict))}")
    if any(not verdict.is_decided and not verdict.passed for verdict in verdicts):
        print("not decided: a recording that lacks something passes with --allow-incomplete")


def _word(verdict: LimitCheck) -> str:
    if verdict.passed:
        return "ok     "
    return "FAILED " if verdict.is_decided else "UNKNOWN"


def _whole_text(verdict: LimitCheck) -> str:
    if verdict.is_decided or verdict.reason in verdict.text:
        return verdict.text
    return f"{verdict.text}; not decided: {verdict.reason}"


def _name(verdict: LimitCheck) -> str:
    return f"{verdict.limit.replace('_', '-')} (rank {verdict.rank}, device {verdict.device})"


def junit(verdicts: list[LimitCheck]) -> str:
    """Return JUnit XML for CI servers: one test suite, one test case per result."""
    from xml.etree import ElementTree as ET

    failures = str(sum(not verdict.passed for verdict in verdicts))
    counts = {"tests": str(len(verdicts)), "failures": failures, "errors": "0", "skipped": "0", "time": "0"}
    suite = ET.Element("testsuite", {"name": "vramscope", **counts})
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname="vramscope.check", name=_name(verdict), time="0")
        if not verdict.passed:
            text = printable(_whole_text(verdict))
            ET.SubElement(case, "failure", type=verdict.limit, message=text).text = text
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


COMMAND = described("check", run)
