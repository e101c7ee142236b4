"""Creates the writer of this process in the run's directory, or in the first free one beside it."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vramscope.capture import Capture
from vramscope.errors import StoreError
from vramscope.model.device import Process
from vramscope.recorder.configured import NUMBERED
from vramscope.recorder.options import RecorderOptions
from vramscope.recorder.process import this_process
from vramscope.store import manifest
from vramscope.store.directory import MANIFEST, ranks_of
from vramscope.store.write.writer import Writer


def create_writer(
    requested: Path, options: RecorderOptions, source: str, capture: Capture
) -> tuple[Path, Writer]:
    """Create the writer; returns the run's directory with it, which is another one if *requested* is taken.

    Raises StoreError.
    """
    process = replace(
        this_process(capture.torch, capture.settings), tags=options.tags, dry_run=options.dry_run
    )
    for number in range(1, 10_000):
        path = requested if number == 1 else requested.with_name(f"{requested.name}-{number}")
        if is_of_another_job(path, process.job):
            continue
        writer = _claimed(path, process, (source, capture, options.max_bytes))
        if writer is not None:
            return path, writer
    raise StoreError(f"{requested}: 9,999 runs of that name exist already")


def _claimed(run: Path, process: Process, of: tuple[str, Capture, int | None]) -> Writer | None:
    """Create the writer of this process' rank in *run*; None if that has one already.

    A process of ``vramscope run COMMAND`` that no launcher numbers takes the first number that is free.
    """
    source, capture, max_bytes = of
    for rank in range(10_000) if process.launcher == NUMBERED else (process.rank,):
        try:
            return Writer(
                run,
                source=source,
                process=replace(process, rank=rank),
                devices=capture.devices,
                started_ns=int(time.time_ns()),
                max_bytes=max_bytes,
            )
        except StoreError as error:  # noqa: PERF203 -- one attempt for each process of the run
            if not isinstance(error.__cause__, FileExistsError):
                raise
    return None


def is_of_another_job(run: Path, job: str) -> bool:
    """Whether a run is known to be of another job.

    Where that had fewer ranks, the directories of its ranks alone would not keep ours apart from it.
    """
    with suppress(StoreError):
        for rank in ranks_of(run)[:1]:
            return manifest.is_other_job(manifest.read(rank / MANIFEST).process.job, job)
    return False
