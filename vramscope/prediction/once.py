"""One dry run of a program, in this process."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.errors import CaptureError
from vramscope.model.prediction import Prediction
from vramscope.prediction.trial import Trial

if TYPE_CHECKING:
    from vramscope.capture import Failed, Options
    from vramscope.prediction.dry import Predicted
    from vramscope.prediction.dry.changes import Changed


def run_once(trial: Trial, body: Callable[[], Any], *, is_last: bool = False) -> Prediction:
    """Run *body* dry, to its end or as far as the steps and the memory go; raise what else it raises.

    *is_last* says that this process does nothing afterwards. The prediction has no figure that an analysis of
    its recording gives. Raises CaptureError if the program never began, or waited for ever for another answer
    than it got.
    """
    trial.check()
    run = _DryRun(trial, is_last=is_last)
    run.do(body)
    return run.outcome()


class _DryRun:
    """The device that a recorder opens for one dry run, and what became of the run."""

    def __init__(self, trial: Trial, *, is_last: bool) -> None:
        self._trial = trial
        self._is_last = is_last
        self._directory = _place(trial)
        self._capture: Predicted | None = None
        self._changed: Changed | None = None

    def _open(self, options: "Options", failed: "Failed") -> "Predicted":
        from vramscope.prediction.dry import Predicted

        self._capture = Predicted(options, failed, self._trial, is_last=self._is_last)
        return self._capture

    def do(self, body: Callable[[], Any]) -> None:
        from vramscope.capture import Source
        from vramscope.prediction.dry import Enough, OutOfMemoryError, Unknown, prepare
        from vramscope.recorder import Recorder, RecorderOptions

        prepare()
        source = Source("predicted", available=lambda: True, open=self._open)
        recorder = Recorder(
            RecorderOptions(
                self._directory, "auto", None, 64, None, source=source, dry_run=self._trial.options
            ),
            quiet=True,
        )
        try:
            # A program that is stopped after enough steps has not failed.
            with recorder, suppress(Enough):
                self._run(body)
        except (OutOfMemoryError, *Unknown):
            pass  # what became of it is in the capture
        finally:
            if self._capture is not None:
                self._capture.leave_cuda()
            self._directory = recorder.directory

    def _run(self, body: Callable[[], Any]) -> None:
        if self._capture is None or not self._capture.cuda.is_entered:
            # Without a dry run the program would run on the card that is there.
            raise CaptureError("the dry run could not begin, so the program was not run")
        if self._trial.change is None:
            body()
            return
        from vramscope.prediction.dry.changes import changed

        with changed(self._trial.change) as self._changed:
            body()

    def outcome(self) -> Prediction:
        capture, change, changed = self._capture, self._trial.change, self._changed
        if capture is None:
            raise CaptureError("the program ended before it could be run dry")
        if capture.cuda.choices.is_endless:
            raise CaptureError("the program does not go on with this answer")
        return Prediction(
            peak_allocated_bytes=capture.peaks["allocated"],
            peak_reserved_bytes=capture.peaks["reserved"],
            phase=None,
            step=None,
            fits=self._fits(capture),
            capacity_bytes=capture.total_bytes,
            context_bytes=capture.card.context_bytes,
            card=capture.card.name,
            certainty=capture.certainty,
            range_bytes=capture.range_bytes,
            reasons=capture.reasons,
            out_of_memory=capture.out_of_memory_at,
            run=self._directory,
            out_of_memory_point=capture.out_of_memory,
            unchanged="" if change is None or changed is None else changed.problem(change),
            n_blocks=0 if changed is None else changed.n_blocks,
            choices=capture.cuda.choices.all(),
            ended_after=capture.ended_after,
        )

    def _fits(self, capture: "Predicted") -> bool | None:
        """Whether the card has room for what is reserved at most; None where it is unknown."""
        if capture.out_of_memory is not None:
            return False
        low, high = capture.range_bytes
        if capture.certainty == "cannot_tell" or high is None:
            return None
        room = capture.total_bytes - capture.card.context_bytes
        return True if capture.peaks["reserved"] + high - low <= room else None


def _place(trial: Trial) -> Path:
    if trial.directory is not None:
        return Path(trial.directory).absolute()
    return Path(tempfile.mkdtemp(prefix="vramscope-")).absolute() / "predicted"
