"""Records the training of a ``lightning.Trainer`` (``pytorch_lightning`` as well)."""

import logging
import sys
from typing import Any

from vramscope.errors import MissingExtraError
from vramscope.integrations._trainer import TrainerRecording

try:
    # A program that uses the older distribution has not loaded the newer one.
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError:
    raise MissingExtraError("lightning") from None

_log = logging.getLogger("lightning.pytorch.vramscope")


class VramscopeCallback(Callback):
    """Records ``fit`` as one of the trainer's callbacks: ``Trainer(callbacks=[VramscopeCallback()])``.

    A step is the batch after which the trainer's ``global_step`` has grown, so accumulated batches are one
    step; validation is a phase. Every logger of the trainer gets ``vram/peak_allocated_bytes``,
    ``vram/peak_reserved_bytes``, ``vram/fragmentation`` and the peaks of phases where the trainer logs
    (``log_every_n_steps``). Arguments as ``TrainerRecording``.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.recording = TrainerRecording(*arguments, **options)
        self._n_done = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the recording, before the sanity check."""
        self._n_done = trainer.global_step
        # With a limit of epochs as well, whichever comes first ends the training.
        total = trainer.max_steps if trainer.max_epochs in (None, -1) else 0
        self.recording.begin(self._n_done, _log.warning, total)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
        """End a step where the optimizer has stepped, and log where the trainer does."""
        if trainer.global_step != self._n_done:
            self._n_done = trainer.global_step
            self.recording.step_ends(self._n_done)
            if trainer._logger_connector.should_update_logs:
                found = self.recording.scalars()
                for logger in trainer.loggers if found else ():
                    logger.log_metrics(found, step=trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the phase of evaluation."""
        self.recording.phase_begins("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the phase of evaluation."""
        self.recording.phase_ends()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:  # noqa: ARG002
        """Mark where a checkpoint is saved."""
        self.recording.recorder.mark("save")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the recording with the training."""
        self.recording.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the recording as failed."""
        self.recording.end(exception)
