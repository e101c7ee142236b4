"""Records a training of torchtitan (0.3 or later) as its metrics."""

import sys
from dataclasses import dataclass
from typing import Any

from vramscope.errors import MissingExtraError
from vramscope.integrations._trainer import TrainerRecording, UncaughtErrors

try:
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.tools.logging import logger
except ImportError:
    raise MissingExtraError("torchtitan") from None


class VramscopeMetrics(MetricsProcessor):
    """The metrics of torchtitan with the memory: ``config.metrics = VramscopeMetrics.Config(...)``.

    The recording begins before the model is made. A step is one of the trainer's, with its validation and
    its checkpoint. Each log has ``vram/peak_allocated_bytes``, ``vram/peak_reserved_bytes``,
    ``vram/fragmentation`` and the peaks of phases since the log before.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """The settings of torchtitan's metrics, and where to record to."""

        trace_directory: str = "traces/torchtitan"
        """The directory of ``vramscope.record``; other options come from ``VRAMSCOPE_…``."""

        profile_steps: tuple[int, int] | None = None
        """Steps are recorded after the first number of finished steps, up to the second; None means all."""

    def __init__(self, config: Any, **runtime: Any) -> None:
        super().__init__(config, **runtime)
        self.recording = TrainerRecording(config.trace_directory, profile_steps=config.profile_steps)
        self._errors = UncaughtErrors(self.recording.end)
        self._step = 0
        self.recording.begin(0, logger.warning)
        # Where the trainer cannot be made, torchtitan does not call close.
        self._errors.watch()

    def should_log(self, step: int) -> bool:
        """End the step before *step*, whose beginning is when the trainer asks this."""
        if 0 < self._step < step:
            self.recording.step_ends(self._step)
        self._step = step
        return bool(super().should_log(step))

    def log(self, *arguments: Any, extra_metrics: dict[str, Any] | None = None) -> None:
        """Log the scalars beside torchtitan's own metrics."""
        super().log(*arguments, extra_metrics={**(extra_metrics or {}), **self.recording.scalars()})

    def close(self) -> None:
        """End the recording with the training, and with the error that ends it, if any."""
        error = sys.exc_info()[1]
        super().close()
        self._errors.release()
        if error is None and self._step:
            self.recording.step_ends(self._step)
        self.recording.end(error)
