"""Logs the scalars of a loop, and the page of its recording, to MLflow."""

from collections.abc import Mapping
from pathlib import Path
from time import time

from vramscope.errors import MissingExtraError, UsageError
from vramscope.integrations.loop import report_page

try:
    from mlflow import MlflowClient, active_run
    from mlflow.entities import Metric
except ImportError:
    raise MissingExtraError("mlflow") from None


class MlflowLog:
    """The *log* of a ``VramscopeHandler`` that writes to a run of MLflow."""

    def __init__(self, run_id: str | None = None) -> None:
        """Log to the run with *run_id*, or to the active one.

        Raises
        ------
        UsageError
            If there is no run.
        """
        active = active_run()
        if run_id is None and active is None:
            raise UsageError("there is no active run of MLflow: call mlflow.start_run() before MlflowLog()")
        self._run_id = run_id or active.info.run_id
        self._client = MlflowClient()

    def __call__(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the scalars of the steps until *step*."""
        now = int(time() * 1000)
        # One request for all of them.
        metrics = [Metric(name, float(value), now, step) for name, value in scalars.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def attach(self, recording: Path) -> None:
        """Keep the page of *recording* beside the run, as an artifact."""
        with report_page(recording) as page:
            if page is not None:
                self._client.log_artifact(self._run_id, str(page))
