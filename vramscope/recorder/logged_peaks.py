"""Peaks since the last question, for a logger; following them begins with the first question."""

from typing import TYPE_CHECKING

from vramscope.capture.undisturbed import Guarded
from vramscope.recorder.messages import warn

if TYPE_CHECKING:
    from vramscope.capture import Capture
    from vramscope.following.recent_peaks import PeakFollower, RecentPeaks
    from vramscope.following.summary_writer import SummaryWriter


class LoggedPeaks:
    """Follows the peaks of one recording from the first question on."""

    def __init__(self) -> None:
        self._follower: PeakFollower | None = None
        self._can_follow = True

    def take(self, summary: "SummaryWriter", capture: "Capture") -> "tuple[RecentPeaks, ...]":
        """Return the peaks since the last question, one entry per device; none at the first one."""
        if self._can_follow:
            with Guarded(self._give_up):
                return self._taken(summary, capture)
        return ()

    def forget(self) -> None:
        """Follow nothing any more: this is a forked child."""
        self._follower = None

    def _give_up(self, error: BaseException) -> None:
        # Peaks for a logger are worth no recording: it goes on without them.
        self._can_follow = False
        warn(f"vramscope has no more peaks to log: {type(error).__name__}: {error}")

    def _taken(self, summary: "SummaryWriter", capture: "Capture") -> "tuple[RecentPeaks, ...]":
        if self._follower is None:
            self._follower = summary.follow()
            return ()
        split = capture.inactive_split_bytes()
        return tuple(
            peaks._replace(inactive_split_bytes=split.get(peaks.device)) for peaks in self._follower.take()
        )
