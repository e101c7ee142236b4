"""Records a training loop of one's own, with scalars for any log."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from vramscope.errors import UsageError
from vramscope.integrations._trainer import TrainerRecording

_log = logging.getLogger("vramscope")


class VramscopeHandler:
    """``with VramscopeHandler("traces/run", log=wandb.log) as handler:`` around a loop that steps it.

    ``handler.step()`` ends a step, ``with handler.phase("eval"):`` names a stretch. Each *every* steps
    ``log(scalars, step)`` gets ``vram/peak_allocated_bytes``, ``vram/peak_reserved_bytes``,
    ``vram/fragmentation`` and the peaks of phases since the call before.
    """

    def __init__(
        self,
        *arguments: Any,
        log: Callable[[Mapping[str, float], int], object] | None = None,
        every: int = 50,
        total_steps: int = 0,
        **options: Any,
    ) -> None:
        """Prepare the recording of a loop.

        Parameters
        ----------
        *arguments, **options
            As for ``TrainerRecording``: the directory, ``profile_steps``, and options of ``record``.
        log
            Takes the scalars and the number of finished steps.
        every
            The number of steps from one call of *log* to the next.
        total_steps
            The number of steps of the loop, for the time left on the dashboard; 0 where it is not known.
        """
        if every < 1:
            raise UsageError(f"every={every}: at least 1")
        self.recording = TrainerRecording(*arguments, **options)
        self._log = log
        self._every = every
        self._total_steps = total_steps
        self.n_done = 0
        """The number of finished steps."""

    def __enter__(self) -> "VramscopeHandler":
        self.recording.begin(self.n_done, _log.warning, self._total_steps)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.recording.end(error)

    def step(self) -> None:
        """End a step, and log where it is time to."""
        self.n_done += 1
        self.recording.step_ends(self.n_done)
        if self._log is not None and self.n_done % self._every == 0:
            found = self.recording.scalars()
            if found:
                self._log(found, self.n_done)

    def phase(self, name: str) -> Any:
        """Name a stretch of the loop, as ``Recorder.phase``."""
        return self.recording.recorder.phase(name)
