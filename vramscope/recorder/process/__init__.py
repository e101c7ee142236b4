"""Describes this process and its job, and names its run."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePath

from vramscope.capture.ranks.mesh import distributed_rank, mesh_coordinates
from vramscope.model.device import Process
from vramscope.recorder.configured import NUMBERED, RUN
from vramscope.recorder.process.launchers import launch_of, launched_s, shared_job
from vramscope.store.liveness import host_name


def this_process(torch: str, allocator: Mapping[str, str]) -> Process:
    """Describe this process as the manifest of a run stores it."""
    launch = launch_of(os.environ)
    # A program that numbers its processes itself (torch.multiprocessing.spawn) tells torch alone.
    own = distributed_rank() if not launch.launcher else None
    rank, world_size = own or launch[:2]
    launcher, job = _of_run(own is not None) if not launch.launcher else (launch.launcher, launch.job)
    return Process(
        rank=rank,
        world_size=world_size,
        host=host_name(),
        pid=os.getpid(),
        command=shlex.join(_arguments()),
        python=platform.python_version(),
        torch=torch,
        allocator=allocator,
        local_rank=launch.local_rank,
        launcher=launcher,
        job=job,
        restarts=launch.restarts,
        mesh=mesh_coordinates(),
    )


def _of_run(is_numbered: bool) -> tuple[str, str]:
    """Launcher and job of a process that no launcher started, below ``vramscope run COMMAND``.

    Processes that number themselves are a job of their own: the process that started them is no rank of it.
    """
    run = os.environ.get(RUN, "")
    if not run:
        return "", ""
    return ("", f"{os.getppid()}.{run}") if is_numbered else (NUMBERED, run)


def _arguments() -> list[str]:
    """The program's arguments as text: it may have put other objects there, or nothing at all."""
    found = getattr(sys, "argv", None)
    words = list.__iter__(found) if isinstance(found, list) else ()
    return [str(each) if isinstance(each, str | int | PurePath) else type(each).__name__ for each in words]


def default_name() -> str:
    """The default name of a run: ``<script>-<job>`` where a launcher names the job, else ``<script>-<time>``.

    Without a name all ranks of a machine use the time at which their launcher started, so they share one run.
    """
    first = next(iter(_arguments()), "")
    script = (Path(first).stem if first not in ("", "-c") else "") or "python"
    launch = launch_of(os.environ)
    job = shared_job(launch)
    if job:
        return f"{script}-{job}"
    start_s = launched_s() if launch.world_size > 1 else None
    return f"{script}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(start_s))}"


def own_environment() -> dict[str, str]:
    """The environment of a process of ours: it has the code of this one, however that was put on the path."""
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)  # noqa: PTH100
    return {**os.environ, "PYTHONPATH": paths}
