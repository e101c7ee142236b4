"""What is done about once a second beside writing: facts for the manifest, leaks, failures, free memory.

One of these is a *tick*: a function that takes the pipeline. None raises for a reason of its own.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vramscope.recorder.notifiers.leaks import LeakNotifier, is_soon_read
from vramscope.recorder.notifiers.limit import LimitNotifier
from vramscope.recorder.notifiers.malloc_trimmer import MallocTrimmer
from vramscope.units import as_sentence

if TYPE_CHECKING:
    from vramscope.recorder.pipeline import Pipeline

Tick: TypeAlias = Callable[["Pipeline"], None]


class Notifiers:
    """The ticks of one recorder, in their order."""

    def __init__(self) -> None:
        self._leaks = LeakNotifier()
        self._has_told_failure = False
        self._limit = LimitNotifier()
        self._trimmer = MallocTrimmer()
        self._ticks: tuple[Tick, ...] = (
            _put_facts,
            _flush_summary,
            self._report_leaks,
            self._report_failure,
            self._report_limit,
            self._trim,
        )

    def tick(self, pipeline: "Pipeline") -> None:
        """Do each, on the thread that flushes."""
        for do in self._ticks:
            do(pipeline)

    def end_block(self, pipeline: "Pipeline") -> None:
        """Report what the block that ended has shown."""
        self._report_leaks(pipeline, is_end=True)
        self._report_failure(pipeline)

    def close(self, pipeline: "Pipeline") -> None:
        """Report the last leaks: the interpreter ends."""
        self._report_leaks(pipeline, is_end=True, is_last=True)
        self._leaks.close()

    def disown(self) -> None:
        """Leave the search for leaks to the parent: this is a forked child."""
        with suppress(Exception):
            self._leaks.close(is_forked=True)

    def _report_leaks(self, pipeline: "Pipeline", *, is_end: bool = False, is_last: bool = False) -> None:
        """Print each leaking line of code once; looks only after the watch has seen memory grow."""
        watch = getattr(pipeline.capture, "watch", None)
        if watch is not None and pipeline.is_placed and watch.n_walks:
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                found = self._leaks.check(pipeline.directory, watch.n_walks, is_end=is_end)
                for text in [*found, *(self._leaks.rest(pipeline.directory) if is_last else ())]:
                    pipeline.messages.tell(text)

    def _report_failure(self, pipeline: "Pipeline") -> None:
        """Pass the cause of the first failed allocation on, where the program's own log wants to know."""
        has_failed = pipeline.messages.report is not None and pipeline.is_placed and pipeline.peaks.n_failed
        # A search for a batch size fails on purpose, again and again: the first failure is enough.
        if has_failed and not self._has_told_failure and is_soon_read(pipeline.directory):
            self._has_told_failure = True
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                pipeline.messages.tell(_cause_of_failure(pipeline.directory))

    def _report_limit(self, pipeline: "Pipeline") -> None:
        """Say once that a limit has come into sight."""
        if pipeline.summary is not None:
            # A failure of the analysis must not end the recording.
            with suppress(Exception):
                for text in self._limit.check(pipeline.summary.current()):
                    pipeline.messages.tell(text)

    def _trim(self, _: "Pipeline") -> None:
        self._trimmer.trim_if_grown()


def _put_facts(pipeline: "Pipeline") -> None:
    pipeline.guarded(pipeline.put_facts)


def _flush_summary(pipeline: "Pipeline") -> None:
    if pipeline.summary is not None:
        pipeline.summary.flush()


def _cause_of_failure(directory: Path) -> str:
    """Return one sentence on the first failed allocation of a run."""
    from vramscope.analysis.oom import findings, oom
    from vramscope.loading import load

    finding = next(
        finding for recording in load(directory).recordings for finding in findings(oom(recording))
    )
    return f"{finding.claim}. {as_sentence(finding.advice or '')}"
