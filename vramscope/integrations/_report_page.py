"""The page of a finished recording, for loggers that keep files beside a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from vramscope import export, registry
from vramscope.errors import VramscopeError
from vramscope.loading import load

PAGE_NAME = "vramscope.html"


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
