"""Says once while the training runs that the limit of a device has come into sight."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramscope.model.rank_summary import RankSummary

_MORE_STEPS = 1.1
"""The steps at which it looks again, as a multiple of those at the last look."""


class LimitNotifier:
    """Looks at the summary of the steps so far, the more rarely the longer the run is."""

    def __init__(self) -> None:
        self._next_steps = 0.0
        self._told: set[int] = set()

    def check(self, summary: "RankSummary | None") -> list[str]:
        """Return one sentence for each device whose limit is in sight for the first time."""
        devices = () if summary is None else summary.devices
        n_steps = max((int(each.steps.n_steps.sum()) for each in devices), default=0)
        if summary is None or n_steps < self._next_steps:
            return []
        self._next_steps = n_steps * _MORE_STEPS

        from vramscope.analysis.forecast import forecast_of_summary

        found = []
        for each in devices:
            ahead = forecast_of_summary(each, summary.process)
            if ahead.forecast is not None and each.device.index not in self._told:
                self._told.add(each.device.index)
                found.append(f"device {each.device.index}: {ahead.text}")
        return found
