"""Records the workers of a training of Ray Train."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.errors import MissingExtraError, UsageError
from vramscope.integrations.loop import VramscopeHandler
from vramscope.remote import local_path

try:
    import ray.train
except ImportError:
    raise MissingExtraError("ray[train]") from None


class VramscopeReporter(VramscopeHandler):
    """``with VramscopeReporter("/shared/traces/run") as reporter:`` in the function that each worker runs.

    ``reporter.report(metrics)`` is ``ray.train.report`` with ``vram/peak_allocated_bytes``,
    ``vram/peak_reserved_bytes``, ``vram/fragmentation`` and the peaks of phases since the report before.
    Every worker is a rank of one run.
    """

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        """Prepare the recording of a worker.

        Parameters
        ----------
        directory
            The trace directory of all workers: an absolute path that every node reaches, or a URL.
        **options
            As for ``VramscopeHandler``.

        Raises
        ------
        UsageError
            If *directory* is relative: Ray Train runs workers in a folder of its own.
        """
        path = local_path(directory) if isinstance(directory, str) else Path(directory)
        if path is not None and not path.is_absolute():
            raise UsageError(f"{path}: Ray Train runs workers in a folder of its own, give an absolute path")
        super().__init__(directory, **options)

    def report(self, metrics: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        """Report *metrics* and the peaks to Ray Train, which keeps those of rank 0.

        Parameters
        ----------
        metrics
            As for ``ray.train.report``; the peaks are added to a copy.
        *arguments, **options
            The checkpoint and so on, as for ``ray.train.report``.
        """
        ray.train.report({**metrics, **self.recording.scalars()}, *arguments, **options)
