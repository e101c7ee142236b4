"""Says once while the training runs that a limit has come into sight, or that a threshold is reached."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.errors import UsageError
from vramscope.model.codes import FindingKind, Severity
from vramscope.model.finding import Finding, Located
from vramscope.units import format_bytes, format_share, parse_bytes

if TYPE_CHECKING:
    from vramscope.model.rank_summary import DeviceSummary, RankSummary

_MORE_STEPS = 1.1
"""The steps at which it looks again, as a multiple of those at the last look."""
_NAMES = ("level", "growth", "forecast")


class Thresholds(NamedTuple):
    """What ``alert_at`` asks for; None where it does not."""

    level_share: float | None = None
    """Reserved memory, as a part of what torch may reserve."""
    level_bytes: int | None = None
    growth_bytes: int | None = None
    """Growth in one step."""
    forecast_steps: int | None = None
    """Steps left until the limit is reached."""


def thresholds(text: str) -> Thresholds:
    """Parse ``level=90%, growth=10MiB, forecast=500``; raises UsageError for what is none of these."""
    if not isinstance(text, str):
        raise UsageError(f"alert_at: a text such as 'level=90%, growth=10MiB', not {text!r}")
    found = Thresholds()
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in _NAMES:
            raise UsageError(f"alert_at: no threshold {name!r}; there is: {', '.join(_NAMES)}")
        try:
            found = found._replace(**_of_name(name, value))
        except ValueError:
            example = {"level": "90% or 70GiB", "growth": "10MiB", "forecast": "500 (steps)"}[name]
            raise UsageError(f"alert_at: {name}={value!r} is none; write for example {example}") from None
    return found


def _of_name(name: str, value: str) -> dict[str, Any]:
    if name == "level" and value.endswith("%"):
        share = float(value.removesuffix("%")) / 100
        if not 0 < share <= 1:
            raise ValueError(value)
        return {"level_share": share}
    if name == "forecast":
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(value)
        return {"forecast_steps": int(value)}
    return {f"{name}_bytes": parse_bytes(value)}


class LimitNotifier:
    """Looks at the summary of the steps so far; at growth and forecast the more rarely the longer the run."""

    def __init__(self, alert_at: Thresholds | None = None) -> None:
        self._alert_at = alert_at or Thresholds()
        self._next_steps = 0.0
        self._reported: set[tuple[str, int]] = set()

    def check(self, summary: "RankSummary | None") -> list[Located]:
        """Return what is so for the first time on a device."""
        if summary is None:
            return []
        n_steps = max((int(each.steps.n_steps.sum()) for each in summary.devices), default=0)
        is_due = n_steps >= self._next_steps
        self._next_steps = n_steps * _MORE_STEPS if is_due else self._next_steps
        found = []
        for each in summary.devices:
            now = [*self._level(each), *(self._trend(each, summary) if is_due else ())]
            found += [Located(finding, summary.process.rank, each.device.index) for finding in now]
        new = [each for each in found if (each.finding.kind, each.device) not in self._reported]
        self._reported |= {(each.finding.kind, each.device) for each in new}
        return new

    def _level(self, device: "DeviceSummary") -> Iterator[Finding]:
        share, least_bytes = self._alert_at[:2]
        if share is None and least_bytes is None:
            return
        from vramscope.analysis.forecast import room_of_summary

        peak, room = device.peak.get("reserved"), room_of_summary(device)
        reserved = max(peak.n_bytes if peak else 0, device.samples.get("reserved_bytes", 0))
        if share is not None and room is not None:
            least_bytes = int(share * room.limit_bytes)
        if least_bytes is not None and reserved >= least_bytes:
            of = f", {format_share(reserved, room.limit_bytes, 0)} of the limit" if room else ""
            claim = f"{format_bytes(reserved)} are reserved{of}: the level of alert_at is reached"
            yield Finding(FindingKind.LEVEL_REACHED, Severity.WARNING, claim, n_bytes=reserved)

    def _trend(self, device: "DeviceSummary", summary: "RankSummary") -> Iterator[Finding]:
        from vramscope.analysis.forecast import forecast_of_summary, growth_of_summary

        least_growth, most_steps = self._alert_at[2:]
        rate = growth_of_summary(device) if least_growth is not None else None
        if rate is not None and least_growth is not None and rate >= least_growth:
            claim = f"peaks of steps grow by {format_bytes(rate)} a step"
            yield Finding(FindingKind.PEAKS_GROW, Severity.WARNING, claim, bytes_per_step=rate)
        ahead = forecast_of_summary(device, summary.process)
        reached = ahead.forecast
        if reached is None:
            return
        last = int(device.steps.step[-1] + device.steps.n_steps[-1] - 1)
        if most_steps is None or reached.step - last <= most_steps:
            yield Finding(
                FindingKind.LIMIT_AHEAD,
                Severity.WARNING,
                ahead.text,
                n_bytes=reached.n_bytes,
                bytes_per_step=reached.bytes_per_step,
            )
