"""Records a loop that uses ``accelerate``, as one of its trackers."""

import logging
from typing import Any

from vramscope.errors import MissingExtraError, UsageError
from vramscope.integrations._trainer import TrainerRecording, UncaughtErrors

try:
    from accelerate.tracking import GeneralTracker
except ImportError:
    raise MissingExtraError("accelerate") from None

_log = logging.getLogger("accelerate.vramscope")


class VramscopeTracker(GeneralTracker):
    """``Accelerator(log_with=[VramscopeTracker("traces/run"), "wandb"])`` records from ``init_trackers`` on.

    What ``accelerator.log`` logs then has ``vram/peak_allocated_bytes``, ``vram/peak_reserved_bytes``,
    ``vram/fragmentation`` and the peaks of phases since the log before, for every tracker after this one: put
    it first. A step ends where the optimizer really steps. Arguments as ``TrainerRecording``.
    """

    name = "vramscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if "profile_steps" in options:
            raise UsageError("accelerate counts no steps: leave out profile_steps, or use a VramscopeHandler")
        super().__init__()
        self.recording = TrainerRecording(*arguments, **options)
        self._errors = UncaughtErrors(self.recording.end)
        self._has_begun = False

    @property
    def tracker(self) -> TrainerRecording:
        """The recording of this process."""
        return self.recording

    def start(self) -> None:
        """Begin to record this process."""
        if not self._has_begun:
            self._has_begun = True
            self.recording.begin(0, _log.warning)
            # accelerate tells no tracker that its program failed.
            self._errors.watch()

    def store_init_configuration(self, values: dict[str, Any]) -> None:  # noqa: ARG002
        """Begin the recording where this version of accelerate does not call ``start``."""
        self.start()

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Add the scalars to what is logged."""
        if not self._has_begun:
            # Old versions of accelerate (1.1) call a tracker in init_trackers only where there is a config.
            _log.warning(
                "vramscope records from this log on, since accelerate began no tracker before; "
                'accelerator.init_trackers("project", config={}) records from there on'
            )
        self.start()
        values.update(self.recording.scalars(step))

    def finish(self) -> None:
        """End the recording, at ``end_training``."""
        self._errors.release()
        self.recording.end()
