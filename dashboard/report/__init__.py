"""The export ``--to html``; the command lists it also where the dashboard's packages are not installed."""

from pathlib import Path

from vramscope.export import Export
from vramscope.model.recording import Run

from .. import check_requirements


def write(run: Run, path: Path) -> list[Path]:
    """Write the report of all recordings to *path*, or into it where it is a directory; return the files."""
    check_requirements()
    from .document import document

    target = path / f"{Path(run.path).name or 'run'}.html" if path.suffix.lower() != ".html" else path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(document(run), encoding="utf-8")
    return [target]


EXPORT = Export("html", "one self-contained page that works from disk, offline", write)
