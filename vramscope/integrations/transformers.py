"""Records the training of a ``transformers.Trainer``, and of what is built on it (TRL, DeepSpeed in it)."""

import sys
from typing import Any

from vramscope.errors import MissingExtraError
from vramscope.integrations._trainer import TrainerRecording, UncaughtErrors

try:
    from transformers import TrainerCallback
    from transformers.utils import logging
except ImportError:
    raise MissingExtraError("transformers") from None

_log = logging.get_logger("transformers.vramscope")


class VramscopeCallback(TrainerCallback):
    """Records a training as one of its callbacks: ``Trainer(..., callbacks=[VramscopeCallback()])``.

    A step is the trainer's ``global_step``, however many batches it accumulates; evaluation and saving are
    phases. Each of its logs has ``vram/peak_allocated_bytes``, ``vram/peak_reserved_bytes``,
    ``vram/fragmentation`` and the peaks of phases since the log before. Arguments as ``TrainerRecording``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.recording = TrainerRecording(*arguments, **options)
        self._errors = UncaughtErrors(self.recording.end)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the recording, and see to it that the loggers of ``report_to`` get the scalars too."""
        handler = sys._getframe(1).f_locals.get("self")
        callbacks = getattr(handler, "callbacks", [])
        if not any(isinstance(each, _Scalars) for each in callbacks):
            # Loggers come before the user's callbacks and would be given the log without the scalars.
            callbacks[:] = [_Scalars(self.recording), *callbacks]
        self.recording.begin(state.global_step, _log.warning, state.max_steps)
        # The trainer tells no callback that its training failed.
        self._errors.watch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step, and begin the phase that follows."""
        self.recording.step_ends(state.global_step)
        self._next_phase(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the phase that follows an epoch."""
        self._next_phase(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the phase of evaluation."""
        self.recording.phase_ends()
        if control.should_save:
            self.recording.phase_begins("save")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the phase of saving."""
        self.recording.phase_ends()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the recording with the training."""
        self._errors.release()
        self.recording.end()

    def _next_phase(self, control: Any) -> None:
        if control.should_evaluate or control.should_save:
            self.recording.phase_begins("eval" if control.should_evaluate else "save")


class _Scalars(TrainerCallback):
    """Adds the scalars to a log before any logger takes it."""

    def __init__(self, recording: TrainerRecording) -> None:
        self._recording = recording

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        found = self._recording.scalars()
        if logs is not None and state.log_history:
            logs.update(found)
            state.log_history[-1].update(found)
