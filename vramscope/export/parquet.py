"""Export of every table as Parquet, for pandas, Polars and DuckDB."""

from pathlib import Path

from vramscope.export import Export
from vramscope.model.recording import Run


def write(run: Run, path: Path) -> list[Path]:
    """Write one file per table and recording below the directory *path*."""
    import pyarrow.parquet as pq

    from vramscope.export._tables import write_tables

    return write_tables(
        run, path, ".parquet", lambda table, file: pq.write_table(table, file, compression="zstd")
    )


EXPORT = Export("parquet", "every table as Parquet, one file each, below a directory", write)
