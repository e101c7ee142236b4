"""Maps work over ranks as tasks of Ray: on an existing cluster, or on a local one that it starts.

Ray schedules, repeats what a lost node was doing, and moves the results; nothing of that is done here.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vramscope.errors import MissingExtraError, VramscopeError

_RETRIES = 5
"""How often a task is repeated whose node was lost."""
_IN_FLIGHT = 1000
"""The most tasks that are handed to Ray at once."""


def mapped_by_ray(
    work: Callable[[Any], Any], inputs: Sequence[Any], address: str | None = None
) -> Iterator[Any]:
    """Map *work* over *inputs* as tasks of Ray, and yield the results in the order of the inputs.

    *work* is a function of vramscope, which is installed on every node, *inputs* are directories that every
    node can read. *address* is that of a cluster; None starts Ray on this machine, unless the program runs in
    Ray already. Raises MissingExtraError without Ray, VramscopeError if there is no cluster.
    """
    if not inputs:
        return
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address)
    try:
        yield from _results(ray, work, inputs)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    # Workers see the same code as this process, however it was put on the path.
    paths = os.pathsep.join(filter(None, sys.path))
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            include_dashboard=False if address is None else None,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise VramscopeError(f"no Ray cluster at {address or 'this machine'}: {error}") from error


def _results(ray: Any, work: Callable[[Any], Any], inputs: Sequence[Any]) -> Iterator[Any]:
    task = ray.remote(work_on).options(num_cpus=1, max_retries=_RETRIES)
    waiting = [task.remote(work, each) for each in inputs[:_IN_FLIGHT]]
    for number in range(len(inputs)):
        result = ray.get(waiting[number])
        # Without its reference Ray forgets the result.
        waiting[number] = None
        if len(waiting) < len(inputs):
            waiting.append(task.remote(work, inputs[len(waiting)]))
        if sys.stderr.isatty():
            end = "\n" if number + 1 == len(inputs) else ""
            sys.stderr.write(f"\rreading ranks: {number + 1} of {len(inputs)}{end}")
            sys.stderr.flush()
        yield result


def work_on(work: Callable[[Any], Any], given: Any) -> Any:
    """Do the work on one input: the body of a task."""
    return work(given)
