"""Logs the scalars of a loop, and the page of its recording, to Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.errors import MissingExtraError, UsageError
from vramscope.integrations.loop import report_page

try:
    import wandb
except ImportError:
    raise MissingExtraError("wandb") from None


class WandbLog:
    """The *log* of a ``VramscopeHandler`` that writes to a run of Weights & Biases."""

    def __init__(self, run: Any = None) -> None:
        """Log to *run*, or to the one that ``wandb.init()`` began.

        Raises
        ------
        UsageError
            If there is no run.
        """
        self._run = run or wandb.run
        if self._run is None:
            raise UsageError("there is no run of wandb: call wandb.init() before WandbLog()")
        # The steps of W&B count calls of log; ours are a metric of their own, so both can be logged.
        self._run.define_metric("vram/step", hidden=True)
        self._run.define_metric("vram/*", step_metric="vram/step")

    def __call__(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the scalars of the steps until *step*."""
        self._run.log({**scalars, "vram/step": step})

    def attach(self, recording: Path) -> None:
        """Keep the page of *recording* beside the run, as an artifact."""
        with report_page(recording) as page:
            if page is not None:
                artifact = wandb.Artifact(f"vramscope-{self._run.id}", type="vramscope")
                artifact.add_file(str(page))
                self._run.log_artifact(artifact)
