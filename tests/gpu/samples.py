"""``python tests/gpu/samples.py FOLDER``: traces of a real card, one per kind of training, to look at."""

import json
import sys
from pathlib import Path

import torch
from torch import nn

import vramscope

MIB = 1 << 20


def transformer(folder: Path) -> None:
    """A transformer of 100 million parameters, batches of several lengths, an evaluation in the middle."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = nn.TransformerEncoder(layer, 12).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with vramscope.record(folder, quiet=True):
        for number in range(12):
            batch = torch.randn(8, 128 + 32 * (number % 5), 768, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(batch).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def out_of_memory(folder: Path) -> None:
    """Half of the memory is allowed, in pieces; then more is asked for than there is."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4096 * MIB / total))
    try:
        with vramscope.record(folder, quiet=True):
            kept = [torch.empty(90 * MIB, dtype=torch.uint8, device="cuda") for _ in range(40)]
            del kept[::2]
            kept.append(torch.empty(3000 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        print("as wanted:", str(error)[:80])
    torch.cuda.set_per_process_memory_fraction(1.0)


def main(folder: Path) -> None:
    """Record all."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    for make in (transformer, out_of_memory):
        make(folder / make.__name__)
        torch.cuda.empty_cache()
    facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    (folder / "machine.json").write_text(json.dumps(facts), encoding="utf-8")
    for make in (transformer, out_of_memory):
        (recording,) = vramscope.load(folder / make.__name__).recordings
        print(make.__name__, len(recording.trace), "events,", len(recording.steps), "steps")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
