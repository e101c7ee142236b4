"""The clean transformer on a CUDA device: the genuine allocator, checked against torch's own counters.

On a GPU, or on a CUDA build of torch over a stand-in for the CUDA runtime (as the committed recording
was): ``python sample_traces/transformer_cuda.py``. No counter is reset: the expected peak is what
``max_memory_allocated()`` reports for the whole process.
"""

import json
import shutil
from pathlib import Path

import torch
from transformer import STEPS, Transformer, train

import vramscope

HERE = Path(__file__).parent


def counters() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {
        name: stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "active", "reserved")
    }


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = False  # the stand-in has none
    # torch imports its compiler with the first optimizer: two seconds that are no training.
    torch.optim.SGD([torch.zeros(1)])
    directory = HERE / "transformer-cuda"
    shutil.rmtree(directory, ignore_errors=True)
    before = torch.cuda.max_memory_allocated()
    with vramscope.record(directory):
        model = Transformer().to("cuda")
        train(model, "cuda")
        end = counters()
        peaks = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
    facts = {
        "source": "cuda",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "steps": STEPS,
        "peak_before_bytes": before,
        "end_bytes": end,
        "peak_bytes": peaks,
    }
    (HERE / "transformer-cuda.expected.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
