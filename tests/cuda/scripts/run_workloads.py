"""``python run_workloads.py FOLDER [GROUP…]``: run every workload without us and recorded.

Without us it resets torch's peaks at every boundary, which tells the true peak of every step and phase; what
torch reported goes into ``FOLDER/NAME.plain.json``. Then the same recorded, into ``FOLDER/NAME`` and
``FOLDER/NAME.recorded.json``.
"""

import gc
import json
import sys
from functools import partial
from pathlib import Path

from catalogue import GROUPS
from children import Work, in_child, linger

MODES = ("plain", "recorded")


def main(folder: Path, groups: list[str]) -> Work | None:
    for group in groups or GROUPS:
        for mode in MODES:
            names, environment = GROUPS[group].names, GROUPS[group].environment
            work = in_child(partial(run, folder, mode, names), folder / f"{group}-{mode}", environment)
            if work is not None:
                return work
    return None


def run(folder: Path, mode: str, names: tuple[str, ...]) -> None:
    import torch
    import workloads
    from guards import Guards
    from probe import Probe

    guards = Guards()

    for name in names:
        gc.collect()
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        probe = Probe(folder / name if mode == "recorded" else None, resets=mode == "plain")
        getattr(workloads, name)(probe)
        (folder / f"{name}.{mode}.json").write_text(json.dumps(probe.answer() | {"guarded": vars(guards)}))
    linger()


if __name__ == "__main__":
    work = main(Path(sys.argv[1]), sys.argv[2:])
    if work is not None:
        work()
