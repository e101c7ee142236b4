"""What is done about once a second beside writing: facts for the manifest, leaks, failures, free memory.

None of it raises for a reason of its own.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vramscope.recorder.configured import WEBHOOK
from vramscope.recorder.notifiers.leaks import LeakNotifier, is_soon_read
from vramscope.recorder.notifiers.limit import LimitNotifier, thresholds
from vramscope.recorder.notifiers.malloc_trimmer import MallocTrimmer
from vramscope.stalls import importing
from vramscope.units import as_sentence

if TYPE_CHECKING:
    from vramscope.model.finding import Finding, Located
    from vramscope.recorder.notifiers.receiver import Receiver
    from vramscope.recorder.pipeline import Pipeline


class Notifiers:
    """What one recorder tells, and to whom."""

    def __init__(self, alert_at: str = "") -> None:
        self._leaks = LeakNotifier()
        self._has_told_failure = False
        self._limit = LimitNotifier(thresholds(alert_at))
        self._receivers: dict[str, Receiver] = {}
        self._knows_webhook = False
        self._function: Callable[[Finding], object] = lambda _: None
        self._trimmer = MallocTrimmer()

    def tick(self, pipeline: "Pipeline") -> None:
        """Do all of it, on the thread that flushes."""
        pipeline.guarded(pipeline.put_facts)
        if pipeline.summary is not None:
            pipeline.summary.flush()
        self._report_leaks(pipeline)
        self._report_figures(pipeline)
        self._trimmer.trim_if_grown()

    def end_block(self, pipeline: "Pipeline") -> None:
        """Report what the block that ended has shown."""
        self._report_leaks(pipeline, is_end=True)
        self._report_figures(pipeline)

    def close(self, pipeline: "Pipeline") -> None:
        """Report the last leaks: the interpreter ends."""
        self._report_leaks(pipeline, is_end=True, is_last=True)
        self._leaks.close()
        for receiver in self._receivers.values():
            receiver.close()

    def disown(self) -> None:
        """Leave the search for leaks to the parent: this is a forked child."""
        with suppress(Exception):
            self._leaks.close(is_forked=True)
        for receiver in self._receivers.values():
            receiver.disown()

    def pass_to(self, function: "Callable[[Finding], object]") -> None:
        """Pass every finding to *function* of the program, and to none that was named before."""
        from vramscope.recorder.notifiers.receiver import Receiver

        self._function = function
        if "on_finding" not in self._receivers:
            self._receivers["on_finding"] = Receiver(
                "on_finding", lambda found: self._function(found.finding)
            )

    def _report_leaks(self, pipeline: "Pipeline", *, is_end: bool = False, is_last: bool = False) -> None:
        """Print each leaking line of code once; looks only where the watch has seen memory grow."""
        watch = getattr(pipeline.capture, "watch", None)
        if watch is not None and pipeline.is_placed and (watch.n_walks or (is_last and watch.has_risen())):
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                found = self._leaks.check(pipeline.directory, watch.n_walks, is_end=is_end)
                for leak in [*found, *(self._leaks.rest(pipeline.directory) if is_last else ())]:
                    pipeline.messages.tell(leak.sentence)
                    self._send(pipeline, leak.found)

    def _report_figures(self, pipeline: "Pipeline") -> None:
        """Say what the figures so far show: a failed allocation, a limit in sight, a threshold reached."""
        if pipeline.summary is None:
            return
        # A failure of the analysis must not end the recording.
        with suppress(Exception):
            self._has_receivers(pipeline)
            summary = pipeline.summary.current()
            if summary is not None and any(device.n_failed for device in summary.devices):
                self._report_failure(pipeline)
            for found in self._limit.check(summary):
                pipeline.messages.tell(f"device {found.device}: {found.finding.claim}")
                self._send(pipeline, found)

    def _report_failure(self, pipeline: "Pipeline") -> None:
        """Pass the cause of the first failed allocation on, to whoever wants to know."""
        is_wanted = pipeline.messages.report is not None or self._has_receivers(pipeline)
        # A search for a batch size fails on purpose, again and again: the first failure is enough.
        if is_wanted and not self._has_told_failure and is_soon_read(pipeline.directory):
            self._has_told_failure = True
            found = _cause_of_failure(pipeline.directory)
            if pipeline.messages.report is not None:
                pipeline.messages.report(f"{found.finding.claim}. {as_sentence(found.finding.advice or '')}")
            self._send(pipeline, found)

    def _has_receivers(self, pipeline: "Pipeline") -> bool:
        """Whether anybody outside wants findings; the webhook is looked up once."""
        if not self._knows_webhook and os.environ.get(WEBHOOK):
            with importing:
                from vramscope.recorder.notifiers.webhook import receiver_of

            receiver = receiver_of(pipeline.directory.name)
            self._receivers |= {} if receiver is None else {WEBHOOK: receiver}
        self._knows_webhook = True
        return bool(self._receivers)

    def _send(self, pipeline: "Pipeline", found: "Located") -> None:
        if self._has_receivers(pipeline):
            for receiver in self._receivers.values():
                receiver.put(found)


def _cause_of_failure(directory: Path) -> "Located":
    """Return the finding about the first failed allocation of a run."""
    with importing:
        from vramscope.analysis.oom import findings, oom
    from vramscope.loading import load
    from vramscope.model.finding import Located

    return next(
        Located(finding, recording.process.rank, recording.device.index)
        for recording in load(directory).recordings
        for finding in findings(oom(recording))
    )
