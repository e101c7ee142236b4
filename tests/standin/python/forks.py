"""``python forks.py``: a process that has imported torch, and becomes every script asked for, in a fork.

Importing the CUDA build of torch with its optimizers takes 5 s of CPU (3 s without CUDA), a fork 0.3 s.
Nothing has touched CUDA before it, so each has devices of its own, and it ends as any process does. Reads a
JSON line per script and answers with its exit status.
"""

import gc
import json
import os
import runpy
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

LONGEST_S = 580  # less than pytest gives a test


def main() -> dict[str, Any] | None:
    """Serve; in a fork, what is asked of it."""
    _import_torch()
    # Not collected and not moved: pages that nobody writes stay shared.
    gc.collect()
    gc.freeze()
    # The simulated device would search them for tensors of a program that froze them.
    gc.get_freeze_count = lambda: 0
    for line in sys.stdin:
        child = os.fork()
        if not child:
            asked: dict[str, Any] = json.loads(line)
            return asked
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _import_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an old torch and a new NumPy
        import torch

        torch.optim.SGD([torch.zeros(1)])  # imports the compiler


def become(asked: dict[str, Any]) -> None:
    """Directory, output, environment, arguments and path of a process that was started with the script."""
    signal.alarm(LONGEST_S)
    os.chdir(asked["cwd"])
    for number, name in ((0, os.devnull), (1, asked["stdout"]), (2, asked["stderr"])):
        file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    theirs = asked["environment"]
    paths = list(filter(None, theirs.get("PYTHONPATH", "").split(os.pathsep)))
    # What the launcher of the CUDA build has set is needed by processes that the script starts itself.
    of_launcher = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ}
    os.environ.clear()
    os.environ.update(theirs | of_launcher)
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [of_launcher.get("PYTHONPATH")]), *paths])
    sys.argv = [asked["file"], *asked["arguments"]]
    sys.path[:1] = [str(Path(asked["file"]).parent), *paths]


if __name__ == "__main__":
    asked = main()
    if asked is not None:
        become(asked)
        runpy.run_path(asked["file"], run_name="__main__")
