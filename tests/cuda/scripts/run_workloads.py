"""``python run_workloads.py FOLDER recorded|plain NAME…``: run workloads, write ``FOLDER/NAME.MODE.json``.

``recorded`` records each into ``FOLDER/NAME``. ``plain`` does not know us, and resets torch's peaks at every
boundary, which tells the true peak of every step and phase.
"""

import gc
import json
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", module="torch")  # an old torch and a new NumPy
import torch  # noqa: E402
import workloads  # noqa: E402
from probe import Probe  # noqa: E402


def main(folder: Path, mode: str, names: list[str]) -> None:
    torch.backends.cudnn.enabled = False  # the stand-in has none
    torch.optim.SGD([torch.zeros(1)])  # imports the compiler: nothing to be recorded
    for name in names:
        # Garbage is collected at the same moments in every run: it would free memory.
        gc.collect()
        gc.disable()
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        probe = Probe(folder / name if mode == "recorded" else None, resets=mode == "plain")
        getattr(workloads, name)(probe)
        (folder / f"{name}.{mode}.json").write_text(json.dumps(probe.answer()))
    time.sleep(0.3)  # torch aborts at exit while autograd's thread still lets go of its last backward


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
