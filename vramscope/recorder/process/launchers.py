"""Reads from the environment which process of a job this is, for every launcher in use.

No launcher is imported and nothing is asked over the network: a launcher names ranks in variables.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vramscope.package_data import rows
from vramscope.store.liveness import started_ticks


class Launch(NamedTuple):
    """What a launcher says of one process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = -1
    """The number of the process on its host; −1 where unknown."""
    launcher: str = ""
    """The launcher, ``env`` where only the variables of torch are there; '' for a process on its own."""
    job: str = ""
    """An id that all processes of the job share, on all hosts or, with ``@``, on this one; '' if unknown."""
    restarts: int = 0


class _Words(NamedTuple):
    """The variables of one launcher; the first that is set counts."""

    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    job: tuple[str, ...]
    restarts: str = ""
    needs: str = ""


_LAUNCHERS = [
    _Words(name, rank, tuple(size.split()), (local,), tuple(job.split()), restarts, needs)
    for name, needs, restarts, job, rank, size, local in rows(__file__, "launchers.tsv")
]
# Of the programs that set the variables of torch, those that also leave a variable of their own.
_BY_MARK = (
    ("RAY_JOB_ID", "ray"),
    ("ACCELERATE_MIXED_PRECISION", "accelerate"),
    ("DEEPSPEED_ENV_FILE", "deepspeed"),
    ("DS_ENV_FILE", "deepspeed"),
)

_MADE_UP = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def launch_of(environ: Mapping[str, str]) -> Launch:
    """Which process of a job this is.

    It is rank 0 of 1 for a process that no launcher started.
    """
    for words in _LAUNCHERS:
        rank, size = _number(environ, (words.rank,)), _number(environ, words.world_size)
        is_meant = not words.needs or words.needs in environ
        if is_meant and rank is not None and size is not None and rank < size:
            local = _number(environ, words.local_rank)
            return Launch(
                rank,
                size,
                -1 if local is None else local,
                _name(words.launcher, environ),
                _job(words, environ),
                _number(environ, (words.restarts,)) or 0,
            )
    # A program that is given its rank alone still records under that.
    alone = _number(environ, ("RANK",)) if not environ.get("WORLD_SIZE") else None
    return Launch() if alone is None else Launch(alone, launcher="env")


def _name(launcher: str, environ: Mapping[str, str]) -> str:
    if launcher not in ("env", "torchrun"):
        return launcher
    return next((name for mark, name in _BY_MARK if mark in environ), launcher)


def _job(words: _Words, environ: Mapping[str, str]) -> str:
    if words.launcher == "slurm":
        return ".".join(filter(None, [environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")]))
    job = next((environ[name] for name in words.job if environ.get(name)), "")
    # torchrun's default id is the word "none", which other jobs have as well.
    if job and job != "none":
        return job
    started_s = launched_s()
    # All processes of one host have the same parent, which also outlives their restarts.
    return f"{os.getppid()}-{started_s:.2f}@{os.uname().nodename}" if started_s is not None else ""


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    text = next((environ[name] for name in names if environ.get(name)), "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def shared_job(launch: Launch) -> str:
    """The id of the job as part of a file name; '' where it is known on this host alone.

    torchrun makes an id up for a job of one host: the time reads better there.
    """
    if "@" in launch.job or _MADE_UP.fullmatch(launch.job):
        return ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", launch.job).strip("-.")[:60]


def launched_s() -> float | None:
    """Start time of the parent process in seconds since the epoch; None if /proc does not show it."""
    ticks = started_ticks(os.getppid())
    try:
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    return None if ticks is None else int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
