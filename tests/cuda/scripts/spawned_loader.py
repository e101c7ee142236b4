"""``python spawned_loader.py FOLDER``: batches made by two spawned processes while we record.

First without us and without such processes, which gives the same batches; then recorded into ``FOLDER/run``.
Prints what torch computed and reported, a JSON line per training.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

N_STEPS = 6


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4 * N_STEPS

    def __getitem__(self, index: int) -> tuple[Tensor, bool]:
        return torch.full((64,), index / 10), "vramscope" in sys.modules


def train(recorder: Any, **options: Any) -> dict[str, Any]:
    from probe import moment

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses, peaks, known = [], [], []
    with recorder:
        first = moment()
        for batch, knows_us in torch.utils.data.DataLoader(Numbers(), batch_size=4, **options):
            torch.cuda.reset_peak_memory_stats()
            loss = model(batch.cuda()).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del batch
            losses.append(loss.item())
            peaks.append(torch.cuda.max_memory_allocated())
            known += knows_us.tolist()
        last = moment()
    random = torch.rand(4).tolist()
    return {
        "losses": losses, "peaks": peaks, "random": random, "known": known, "first": first, "last": last,
    }  # fmt: skip


def main(folder: Path) -> None:
    import children

    torch.backends.cudnn.enabled = False  # the stand-in has none
    torch.optim.SGD([torch.zeros(1)])
    print(json.dumps(train(nullcontext())))

    import vramscope

    recorder = vramscope.record(folder / "run", quiet=True)
    print(json.dumps(train(recorder, num_workers=2, multiprocessing_context="spawn")))
    children.linger()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
