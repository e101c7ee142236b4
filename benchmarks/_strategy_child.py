"""Trains one model, unchanged and with each strategy: ``python _strategy_child.py FOLDER GROUP NAME``.

``FOLDER/HOW.json`` is torch's own peak of each run; ``FOLDER/plain`` is the recording of the unchanged run.
"""

import gc
import json
import sys
import time
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "tests" / "cuda" / "scripts")]

import vramscope  # noqa: E402

HOW = ("plain", "checkpointed", "micro", "fused", "eight", "momentum")


def main(folder: Path, group: str, name: str) -> None:
    from strategy_runs import OPTIMIZERS, RUNS, n_parts, train

    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    make, batch, n = _models(group)[name]
    gc.disable()
    for how in ("plain", *RUNS[name][1]) if group == "tests" else HOW:
        torch.manual_seed(0)
        try:
            model = make(how == "checkpointed").cuda()
        except ModuleNotFoundError as error:
            print(error, file=sys.stderr)
            sys.exit(3)
        optimizer = OPTIMIZERS.get(how, torch.optim.AdamW)(model.parameters())
        gc.collect()
        with vramscope.record(folder / "plain", quiet=True) if how == "plain" else nullcontext():
            for _ in range(3):
                train(model, optimizer, partial(batch, n // n_parts(how)), how)
        (folder / f"{how}.json").write_text(json.dumps(torch.cuda.max_memory_allocated()))
        del model, optimizer
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    (folder / "done").touch()
    time.sleep(0.3)  # torch aborts at exit while autograd's thread still lets go of its last backward


def _models(group: str) -> dict:
    if group == "known":
        from _strategy_models import KNOWN

        return KNOWN
    if group.startswith("blind"):
        return import_module(f"_strategy_{group}").UNSEEN
    from strategy_runs import MODELS, RUNS

    return {each: (*MODELS[each.partition("-")[0]], n) for each, (n, _) in RUNS.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
