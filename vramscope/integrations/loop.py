"""Records a training loop of one's own, with scalars for any log."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from vramscope import export, registry
from vramscope.errors import UsageError, VramscopeError
from vramscope.integrations._trainer import TrainerRecording
from vramscope.loading import load

_log = logging.getLogger("vramscope")
PAGE_NAME = "vramscope.html"


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
            Takes the scalars and the number of finished steps. If it has a method ``attach``, as the logs
            for W&B, MLflow and TensorBoard have, that is given the directory of the finished recording.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.recording.end(error)
        attach = getattr(self._log, "attach", None)
        if attach is not None and error is None:
            try:
                attach(self.recording.recorder.directory)
            # A logger that cannot be reached must not end the program after its training.
            except Exception as failure:  # noqa: BLE001
                _log.warning("vramscope: the page of the recording is not attached: %s", failure)

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


@contextmanager
def report_page(recording: Path) -> Iterator[Path | None]:
    """Write the page of the run in *recording* to a temporary folder; None, and a warning, where that fails.

    The page needs ``vramscope[dashboard]``, and a second per million events.
    """
    with TemporaryDirectory(prefix="vramscope-") as folder:
        page: Path | None = Path(folder) / PAGE_NAME
        try:
            registry.part(export, export.Export, "html").write(load(recording), Path(folder) / PAGE_NAME)
        except (VramscopeError, OSError) as error:
            warnings.warn(f"vramscope attaches no page of {recording}: {error}", RuntimeWarning, stacklevel=3)
            page = None
        yield page
