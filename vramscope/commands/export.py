"""Export of a run to files that other tools read."""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from vramscope.commands import described
from vramscope.commands._crew import waiting
from vramscope.errors import UsageError
from vramscope.units import format_bytes, format_count


class _Formats:
    """The names of all formats, which are looked up only for the help."""

    def __iter__(self) -> Iterator[str]:
        from vramscope import export, registry

        return iter(sorted(registry.parts(export, export.Export, refused=lambda *_: None)))

    def __contains__(self, name: str) -> bool:
        """Any name: the registry says which are missing."""
        return True


def run(args: Namespace) -> int:
    """Write a run in another format; return the exit code."""
    from vramscope import export, registry
    from vramscope.loading import load

    chosen = registry.part(export, export.Export, args.to)
    output = Path(args.output)
    exists = any(output.iterdir()) if output.is_dir() else output.exists()
    if exists and not args.force:
        raise UsageError(f"{output}: there is something already; choose another --output, or pass --force")
    with waiting(f"reading {args.path}"):
        loaded = load(args.path)
    if args.redact:
        from vramscope.export.redaction import redacted

        loaded = redacted(loaded)
    output.parent.mkdir(parents=True, exist_ok=True)
    with waiting(f"writing {output}"):
        files = chosen.write(loaded, output)
    size = sum(file.stat().st_size for file in files)
    print(f"{format_count(len(files), 'file')}, {format_bytes(size)}: {output}")
    return 0


COMMAND = described("export", run, choices={"--to": _Formats()})
