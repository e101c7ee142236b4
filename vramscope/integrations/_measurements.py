"""The figures of running recordings as named measurements, for every system of metrics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vramscope.analysis.forecast import forecast_of_summary
from vramscope.model.rank_summary import DeviceSummary, RankSummary
from vramscope.model.recording import Outcome
from vramscope.package_data import rows

MOST_RANKS = 256
"""The most ranks that are measured; each has some 25 series."""


class Measured(NamedTuple):
    """One kind of measurement: all devices of all ranks have the same ones."""

    name: str
    help: str
    unit: str = "bytes"
    is_count: bool = False
    """Whether it only grows."""


def _measured(kind: str) -> dict[str, Measured]:
    found = rows(__file__, "_measurements.tsv", kind)
    return {key: Measured(name, words, unit, grows == "count") for key, name, words, unit, grows in found}


LEVELS, PEAKS, SAMPLED, _ONE = map(_measured, ("level", "peak", "sample", "one"))
PHASES, FORECAST, STEPS, EVENTS, FAILURES = _ONE.values()
EVERY = (*LEVELS.values(), *PEAKS.values(), PHASES, *SAMPLED.values(), FORECAST, STEPS, EVENTS, FAILURES)


class Measurement(NamedTuple):
    """One value with its labels."""

    of: Measured
    labels: Mapping[str, str]
    value: int


def measurements(
    summaries: Iterable[RankSummary], labels: Mapping[str, str] | None = None
) -> Iterator[Measurement]:
    """Yield every measurement of the first ``MOST_RANKS`` summaries, one per rank.

    *labels* are those beside ``rank`` and ``device``, the same for all.
    """
    for summary in sorted(summaries, key=lambda each: each.process.rank)[:MOST_RANKS]:
        for device in summary.devices:
            place = {"rank": str(summary.process.rank), "device": str(device.device.index)}
            yield from _of_device(device, {**(labels or {}), **place})
            if summary.outcome is Outcome.RUNNING:
                ahead = forecast_of_summary(device, summary.process).forecast
                bounds = (ahead.step_range[0], ahead.step, ahead.step_range[1]) if ahead else ()
                for bound, step in zip(("earliest", "likely", "latest"), bounds, strict=False):
                    yield Measurement(FORECAST, {**(labels or {}), **place, "bound": bound}, step)


def _of_device(device: DeviceSummary, labels: Mapping[str, str]) -> Iterator[Measurement]:
    if device.is_exact:
        for name, of in LEVELS.items():
            if name in device.end:
                yield Measurement(of, labels, device.end[name])
        for name, of in PEAKS.items():
            if name in device.peak:
                yield Measurement(of, labels, device.peak[name].n_bytes)
        for phase, n_bytes in device.phases.items():
            yield Measurement(PHASES, {**labels, "phase": phase}, n_bytes)
    for name, of in SAMPLED.items():
        if name in device.samples:
            yield Measurement(of, labels, device.samples[name])
    yield Measurement(STEPS, labels, int(device.steps.n_steps.sum()))
    yield Measurement(EVENTS, labels, device.n_events)
    yield Measurement(FAILURES, labels, device.n_failed)
