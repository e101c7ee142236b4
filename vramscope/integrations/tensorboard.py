"""Logs the scalars of a loop, and where the page of its recording is, to TensorBoard."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from vramscope.errors import MissingExtraError
from vramscope.integrations.loop import PAGE_NAME, report_page

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError:
    raise MissingExtraError("tensorboard") from None


class TensorBoardLog:
    """The *log* of a ``VramscopeHandler`` that writes to TensorBoard."""

    def __init__(self, writer: "SummaryWriter | str | Path") -> None:
        """Write with *writer*, or to a log directory."""
        self._writer = writer if isinstance(writer, SummaryWriter) else SummaryWriter(str(writer))

    def __call__(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the scalars of the steps until *step*."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def attach(self, recording: Path) -> None:
        """Write the page of *recording* into the log directory, and a text that says where it is."""
        with report_page(recording) as page:
            if page is not None:
                target = Path(self._writer.get_logdir()) / PAGE_NAME
                shutil.copyfile(page, target)
                self._writer.add_text("vram/report", f"The page of the recording: `{target}`")
        self._writer.flush()
