"""Reports why an allocation failed, to the program's own log, while the program runs."""

from pathlib import Path

from vramscope.recorder.leak_notifier import is_soon_read


class FailureNotifier:
    """Runs the analysis of failed allocations on the recording once the first one has failed."""

    def __init__(self) -> None:
        self._is_over = False

    def check(self, directory: Path, n_failed: int) -> str | None:
        """Return one sentence on the first failure, once; nothing is read before *n_failed* is above 0."""
        # A search for a batch size fails on purpose, again and again: the first failure is enough.
        if self._is_over or not n_failed or not is_soon_read(directory):
            return None
        self._is_over = True
        from vramscope.analysis.oom import findings, oom
        from vramscope.loading import load

        found = [each for recording in load(directory).recordings for each in findings(oom(recording))]
        return f"{found[0].claim}. {found[0].advice}" if found else None
