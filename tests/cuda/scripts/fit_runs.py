"""``python fit_runs.py FOLDER [PART…]``: every run that the tests of ``fit`` look at, one fork each.

Each part is a module with ``cases(folder)``: name, what to run, and the environment that it finds.
"""

import importlib
import os
import sys
from pathlib import Path

from children import Work, in_child

PARTS = ("what_if_runs", "oom_seeds", "batches", "strategy_runs", "verdict_runs")


def main(folder: Path, parts: list[str]) -> Work | None:
    for part in parts or PARTS:
        for name, work, environment in importlib.import_module(part).cases(folder):
            forked = in_child(work, folder / f"{name}.out", environment)
            if forked is not None:
                return forked
    return None


if __name__ == "__main__":
    work = main(Path(sys.argv[1]), sys.argv[2:])
    if work is not None:
        work()
        sys.stdout.flush()
        os._exit(0)  # what a fork of a whole torch does at its end takes longer than its work
