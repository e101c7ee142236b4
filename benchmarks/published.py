"""What people measured on real cards and published, beside what ``vramscope predict`` says of the same training.

``python benchmarks/published.py [--only bert,zero] [--page-only]`` runs the rows dry, writes their figures to
``published.json`` and the page to ``docs/published.md``. A row is one line of ``ROWS``: the program of
``_published_program.py`` with its options, and the figure with its source.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
FIGURES, PAGE = HERE / "published.json", ROOT / "docs" / "published.md"
LONGEST_S = 600
UNITS = {"MB": 10**6, "MiB": 2**20, "GiB": 2**30, "GB": 10**9, "GB of MiB": 1000 * 2**20}
OUT_OF_MEMORY = "out of memory"


class Source(NamedTuple):
    """Where figures were published."""

    name: str
    url: str
    date: str
    hardware: str
    quantity: str
    assumed: str
    card: tuple[str, ...]
    beside_bytes: int = 0
    """What the page's figure holds beside torch's allocator, by the page itself."""


class Row(NamedTuple):
    """One published figure, with the training that it is of; ``published`` is None where it ran out of memory."""

    key: str
    source: str
    what: str
    published: float | None
    unit: str
    options: dict[str, Any]
    why: str = ""
    environment: dict[str, str] = {}
    more: tuple[str, ...] = ()

    @property
    def published_bytes(self) -> int | None:
        return None if self.published is None else round(self.published * UNITS[self.unit])

    def predicted_bytes(self, figure: dict[str, Any]) -> int:
        """The predicted peak as its page counts it."""
        source = SOURCES[self.source]
        return int(figure[f"peak_{source.quantity}_bytes"]) + source.beside_bytes

    def off_percent(self, figure: dict[str, Any]) -> float | None:
        """How far the prediction is off; None where there is no published figure."""
        published = self.published_bytes
        return None if published is None else 100 * (self.predicted_bytes(figure) / published - 1)


SOURCES = {
    "hf": Source(
        "transformers, *Performance and Scalability*",
        "https://github.com/huggingface/transformers/blob/v4.16.0/docs/source/performance.mdx",
        "January 2022",
        "V100, 16 GB",
        "reserved",
        "of NVML's figure 1,343 MiB are CUDA's own, as the page measures with one small tensor; torch of that year kept softmax's input for "
        "its backward (read in its derivatives, not run) and had one AdamW that goes from parameter to parameter and gradients that stay",
        ("--card", "V100"),
        1343 * 2**20,
    ),
    "litgpt": Source(
        "LitGPT, *Resource tables*",
        "https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md",
        "October 2023",
        "A100, 40 GB",
        "allocated",
        "the longest example, of which the page gives the length, comes after shorter ones; RMSNorm computes in float32, as of 24 October 2023 "
        "(the commit that the page names computes in bfloat16: with it Llama 2 is 3 to 5 % below)",
        ("--card", "a100-40"),
    ),
    "peft": Source(
        "PEFT, README",
        "https://github.com/huggingface/peft/blob/v0.3.0/README.md",
        "February 2023",
        "A100, 80 GB",
        "allocated",
        "batch 8 and 64 tokens, as the page's scripts have it for bloomz; its GB are thousands of MiB, which the scripts print; torch 1.13 "
        "(gradients stay, AdamW without `foreach`)",
        ("--card", "a100-80"),
    ),
    "lomo": Source(
        "*Full Parameter Fine-tuning for LLMs with Limited Resources*, table 1",
        "https://arxiv.org/abs/2306.09782",
        "June 2023",
        "not stated for the table",
        "allocated",
        "batch 8 of 512 tokens; weights and gradients in float16, masters and states in float32; GB are GiB; the table is quoted from memory, "
        "as the paper was not at hand",
        ("--capacity", "200GiB"),
    ),
    "zero": Source(
        "PyTorch, *Shard Optimizer States with ZeroRedundancyOptimizer*",
        "https://pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html",
        "February 2021",
        "two cards, not named",
        "allocated",
        "torch 1.8 had cuBLAS's workspaces outside of its allocator, and no `foreach`",
        ("--card", "V100", "--ranks", "2"),
    ),
    "raschka": Source(
        "S. Raschka, *Optimizing Memory Usage for Training LLMs and Vision Transformers*",
        "https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md",
        "July 2023",
        "A100",
        "reserved",
        "the workspace of cuDNN for the one convolution is not counted",
        ("--card", "a100-40"),
    ),
    "torchao": Source(
        "torchao, *Low-bit optimizers*",
        "https://github.com/pytorch/ao/blob/03cf0adec63fdbae2fd6d2aa7688b52ee8c64004/torchao/prototype/low_bit_optim/README.md",
        "September 2024",
        "RTX 4070 Ti Super",
        "allocated",
        "the model from its number of parameters and timm's name; AdamW fused, as the page's script has it",
        ("--card", "4070 ti super"),
    ),
    "torchtune": Source(
        "torchtune, README, *Optimization flags*",
        "https://github.com/pytorch/torchtune#optimization-flags",
        "December 2024",
        "A100, 80 GB",
        "allocated",
        "AdamW fused; rows that the page has with `torch.compile` run without",
        ("--card", "a100-80"),
    ),
    "torchtitan": Source(
        "torchtitan, *llama3_h100_202412_torchtitan*",
        "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md",
        "December 2024",
        "H100, 96 GB",
        "reserved",
        "8,192 tokens, as the model's configuration; AdamW with `foreach`; attention by flash, as torch of that month chose",
        ("--capacity", "95GiB"),
    ),
    "accelerate": Source(
        "Hugging Face, *Accelerate Large Model Training using PyTorch FSDP*",
        "https://huggingface.co/blog/pytorch-fsdp",
        "April 2022",
        "Titan RTX, 23.65 GiB",
        "allocated",
        "128 tokens (the page's `--block_size 12` is cut off); AdamW without `foreach`",
        ("--capacity", "23.65GiB"),
    ),
}


def bert(batch: int, times: int, **more: Any) -> dict[str, Any]:
    return {"program": "bert", "batch": batch, "times": times, **more}


def low(model: str, batch: int, length: int) -> dict[str, Any]:
    return {
        "program": "low_rank",
        "model": model,
        "batch": batch,
        "length": length,
        **({"norm": "float32"} if "llama" in model else {}),
    }


def picture(model: str, batch: int, **more: Any) -> dict[str, Any]:
    return {"program": "vision", "model": model, "batch": batch, **more}


def timm(model: str, batch: int, **more: Any) -> dict[str, Any]:
    return picture(model, batch, classes=45, fused=True, adam=False, clears="after the step", **more)


def packed(**more: Any) -> dict[str, Any]:
    return {"program": "full", "model": "llama-3.2-3b", "batch": 2, "length": 4096, **more}


SMALL = {"checkpoints": True, "half": True}
SHARDED = {"program": "sharded", "model": "llama-3.1-8b", "batch": 2, "length": 8192}
OUTSIDE = {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}
HALF = "half precision has one result of attention a layer more on the page; not explained"
ACTIVATIONS = (
    "not explained: about a fifth of the activations are missing, so the page's attention or batch is another"
)

ROWS = (
    Row("bert", "hf", "bert-large, batch 4", 14949, "MiB", bert(4, 1)),
    Row("bert-accumulate", "hf", "bert-large, 4 x batch 1", 8681, "MiB", bert(1, 4)),
    Row("bert-checkpoints", "hf", "the same with checkpoints", 6775, "MiB", bert(1, 4, checkpoints=True)),
    Row("bert-half", "hf", "bert-large, batch 4, fp16", 13939, "MiB", bert(4, 1, half=True), "not explained"),
    Row("bert-checkpoints-half", "hf", "4 x batch 1, checkpoints, fp16", 7275, "MiB", bert(1, 4, **SMALL)),
    Row("bert-adafactor", "hf", "bert-large, batch 4, Adafactor", 12295, "MiB", bert(4, 1, adafactor=True)),
    Row("bert-all", "hf", "4 x batch 1, checkpoints, fp16, Adafactor", 4847, "MiB", bert(1, 4, adafactor=True, **SMALL)),
    Row("phi-1", "litgpt", "phi-1.5, LoRA, batch 1", 4.82, "GB", low("phi-1.5", 1, 1044)),
    Row("phi-2", "litgpt", "phi-1.5, LoRA, batch 2", 6.76, "GB", low("phi-1.5", 2, 1044)),
    Row("phi-4", "litgpt", "phi-1.5, LoRA, batch 4", 10.68, "GB", low("phi-1.5", 4, 1044)),
    Row("stablelm-1", "litgpt", "StableLM 3B, LoRA, batch 1", 9.69, "GB", low("stablelm-3b", 1, 1034)),
    Row("stablelm-2", "litgpt", "StableLM 3B, LoRA, batch 2", 12.10, "GB", low("stablelm-3b", 2, 1034)),
    Row("stablelm-4", "litgpt", "StableLM 3B, LoRA, batch 4", 16.92, "GB", low("stablelm-3b", 4, 1034)),
    Row("llama-7b-1", "litgpt", "Llama 2 7B, LoRA, batch 1", 21.30, "GB", low("llama-2-7b", 1, 1304)),
    Row("llama-7b-2", "litgpt", "Llama 2 7B, LoRA, batch 2", 29.07, "GB", low("llama-2-7b", 2, 1304)),
    Row("llama-7b-4", "litgpt", "Llama 2 7B, LoRA, batch 4", None, "GB", low("llama-2-7b", 4, 1304)),
    Row("llama-13b-1", "litgpt", "Llama 2 13B, LoRA, batch 1", 38.12, "GB", low("llama-2-13b", 1, 1304)),
    Row("llama-13b-2", "litgpt", "Llama 2 13B, LoRA, batch 2", None, "GB", low("llama-2-13b", 2, 1304)),
    Row("falcon-40b", "litgpt", "Falcon 40B, LoRA, batch 1", None, "GB", low("falcon-40b", 1, 1079)),
    Row("t0-full", "peft", "T0 3B, all weights", 47.14, "GB of MiB", {"program": "seq2seq", "batch": 8, "length": 64, "foreach": False, "keeps_gradients": True}),
    Row("t0-lora", "peft", "T0 3B, LoRA", 14.4, "GB of MiB", {"program": "seq2seq", "batch": 8, "length": 64, "low": True}),
    Row("mt0-lora", "peft", "mT0-xxl 12B, LoRA", 56, "GB of MiB", {"program": "seq2seq", "batch": 8, "length": 64, "low": True, "model": "mt0-xxl"}),
    Row("mt0-full", "peft", "mT0-xxl 12B, all weights", None, "GB", {"program": "seq2seq", "batch": 8, "length": 64, "model": "mt0-xxl"}),
    Row("bloomz-lora", "peft", "bloomz 7B1, LoRA", 32, "GB of MiB", {"program": "bloom", "batch": 8, "length": 64}),
    Row("bloomz-full", "peft", "bloomz 7B1, all weights", None, "GB", {"program": "bloom", "batch": 8, "length": 64, "low": False}),
    Row("lomo-adamw", "lomo", "LLaMA 7B, AdamW, checkpoints", 102.20, "GiB", {"program": "lomo", "optimizer": "adamw", "checkpoints": True}),
    Row("lomo-sgd", "lomo", "LLaMA 7B, SGD, checkpoints", 51.99, "GiB", {"program": "lomo", "optimizer": "sgd", "checkpoints": True}),
    Row("lomo", "lomo", "LLaMA 7B, LOMO, checkpoints", 14.58, "GiB", {"program": "lomo", "optimizer": "lomo", "checkpoints": True}),
    Row("lomo-adamw-all", "lomo", "LLaMA 7B, AdamW", 147.02, "GiB", {"program": "lomo", "optimizer": "adamw"}, ACTIVATIONS),
    Row("lomo-sgd-all", "lomo", "LLaMA 7B, SGD", 96.81, "GiB", {"program": "lomo", "optimizer": "sgd"}, ACTIVATIONS),
    Row("lomo-all", "lomo", "LLaMA 7B, LOMO", 59.40, "GiB", {"program": "lomo", "optimizer": "lomo"}, ACTIVATIONS),
    Row("zero-before", "zero", "20 layers in DDP, before the step", 992, "MB", {"program": "zero", "is_sharded": False, "steps": False}, environment=OUTSIDE),
    Row("zero-adam", "zero", "20 layers in DDP, Adam", 1697, "MB", {"program": "zero", "is_sharded": False, "steps": True}, environment=OUTSIDE),
    Row("zero-sharded", "zero", "20 layers in DDP, Adam in ZeRO-1", 1361, "MB", {"program": "zero", "is_sharded": True, "steps": True}, environment=OUTSIDE),
    Row("vit", "raschka", "ViT-L/16, batch 64", 26.79, "GB", picture("vit-l/16", 64)),
    Row("vit-mixed", "raschka", "ViT-L/16, batch 64, fp16 mixed", 18.21, "GB", picture("vit-l/16", 64, autocast="float16"), HALF),
    Row("vit-half", "raschka", "ViT-L/16, batch 64, bfloat16", 13.82, "GB", picture("vit-l/16", 64, dtype="bfloat16"), HALF),
    Row("vit-16", "raschka", "ViT-L/16, batch 16, bfloat16", 5.69, "GB", picture("vit-l/16", 16, dtype="bfloat16"), HALF),
    Row("vit-4", "raschka", "ViT-L/16, 4 x batch 4, bfloat16", 3.91, "GB", picture("vit-l/16", 4, dtype="bfloat16", times=4), "not explained; one more temporary of Adam, as large as the weights, would be 0.6 GB"),
    Row("vit-h", "torchao", "ViT-H, batch 8, bfloat16 mixed", 12.94, "GB", timm("vit-h/14", 8, autocast="bfloat16"), "not explained: the page does not name the model"),
    Row("vit-g", "torchao", "ViT-g (DINOv2), batch 32, bfloat16, checkpoints", 9.82, "GB", timm("vit-g/14", 32, dtype="bfloat16", checkpoints=True)),
    Row("llama-3b-packed", "torchtune", "Llama 3.2 3B, batch 2, packed", 60.0, "GiB", packed()),
    Row("llama-3b-checkpoints", "torchtune", "the same, loss in chunks, checkpoints, compiled", 24.9, "GiB", packed(checkpoints=True, chunks=8)),
    Row("llama-3b-in-backward", "torchtune", "the same, optimizer in backward", 23.1, "GiB", packed(checkpoints=True, chunks=8, in_backward=True), why="not explained"),
    Row("titan-8", "torchtitan", "Llama 3.1 8B, FSDP2 on 8 ranks, batch 2", 82.4, "GiB", SHARDED, more=("--ranks", "8")),
    Row("titan-128", "torchtitan", "Llama 3.1 8B, FSDP2 on 128 ranks, batch 2", 67.0, "GiB", SHARDED, more=("--ranks", "128")),
    Row("gpt2-xl", "accelerate", "GPT-2 XL, float32, AdamW, batch 1", None, "GiB", {"program": "gpt2_xl", "batch": 1, "length": 128}),
)  # fmt: skip


def predicted(row: Row) -> dict[str, Any]:
    """What ``vramscope predict`` says of a row."""
    command = [sys.executable, "-m", "vramscope", "predict", "--json", *SOURCES[row.source].card, *row.more]
    command += [str(HERE / "_published_program.py"), json.dumps(row.options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **row.environment}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST_S, env=environment, check=False
    )
    try:
        said = json.loads(run.stdout)
    except ValueError:
        raise SystemExit(f"{row.key}: {run.stderr[-600:]}") from None
    kept = ("peak_allocated_bytes", "peak_reserved_bytes", "certainty", "fits", "peak_allocated_range_bytes")
    return {name: said[name] for name in kept} | (
        said["without_limit"] or {} if said["fits"] is False else {}
    )


def is_false(row: Row, figure: dict[str, Any]) -> bool:
    """Whether the verdict contradicts the page: "fits" of what ran out of memory, "does not fit" of what ran."""
    return figure["fits"] is (row.published is None)


def line(row: Row, figure: dict[str, Any]) -> str:
    """The row of the page's table."""
    divisor, unit = UNITS[row.unit], row.unit.replace("GB of MiB", "GB")
    said, off = row.predicted_bytes(figure) / divisor, row.off_percent(figure)
    digits = 0 if unit in ("MB", "MiB") else 2
    published = OUT_OF_MEMORY if row.published is None else f"{row.published:,.{digits}f} {unit}"
    fits = {True: "fits", False: "does not fit", None: "cannot tell"}[figure["fits"]]
    cells = (row.what, published, f"{said:,.{digits}f} {unit}", "" if off is None else f"{off:+.1f} %")
    return f"| {' | '.join((*cells, figure['certainty'], ranged(figure, divisor), fits, row.why))} |"


FIRST = """## What the first run said

Options that a page leaves open were set after the first run of its rows showed a difference, so the figures above are not blind. As they came,
before: bert-large in fp16 -8.8 % (softmax's input was kept in half precision, torch kept it in float32); LoRA of phi-1.5 +1.5 to +2.4 % (every
example was as long as the longest); T0 3B with all weights -8.8 % (gradients were given back, the head was tied); ZeRO +3.4 to +5.7 %
(cuBLAS's workspaces were counted); ViT-H +13.9 % and ViT-g +6.9 % (gradients were given back after the forward, not after the step);
Llama 3.2 3B with checkpoints +20 % (AdamW by `foreach`, not fused); torchtitan on 8 ranks -5.1 % (attention by cuDNN, which its
checkpoints do not keep).
"""


def ranged(figure: dict[str, Any], divisor: int) -> str:
    """The range of allocated memory that the prediction gives."""
    low, high = figure["peak_allocated_range_bytes"]
    if low == high:
        return "exact"
    return (
        f"at least {low / divisor:,.2f}" if high is None else f"{low / divisor:,.2f} to {high / divisor:,.2f}"
    )


def page(figures: dict[str, dict[str, Any]]) -> str:
    """The whole of ``docs/published.md``."""
    off = [abs(value) for row in ROWS if (value := row.off_percent(figures[row.key])) is not None]
    ended = [row for row in ROWS if row.published is None]
    text = [
        "# Published figures",
        "",
        "Memory that others measured on real cards and published, beside what `vramscope predict` says of the same training, without a card. The",
        "programs are rebuilt from what each page says; what it leaves open, and what torch did otherwise in its year, is stated. Figures are those of torch",
        "2.13, which differs from the torch of the page. A row with a convolution (LoRA of LitGPT, vision) is a lower bound, as cuDNN's workspace is not known.",
        "`make bench-published` makes this page.",
        "",
        f"Of {len(off)} figures {sum(value <= 2 for value in off)} are within 2 %, {sum(value <= 5 for value in off)} within 5 %. {len(ended)} trainings ran out of "
        f"memory: {sum(figures[row.key]['fits'] is False for row in ended)} are said not to fit. No verdict contradicts a page.",
        "",
    ]  # fmt: skip
    for key, source in SOURCES.items():
        quantity = f"peak of {source.quantity} memory"
        text += [
            f"## [{source.name}]({source.url})",
            "",
            f"{source.date}; {source.hardware}; {quantity}. Assumed: {source.assumed}.",
            "",
        ]
        text += [
            "| training | published | predicted | off | certainty | allocated, range | verdict | difference |",
            "| --- | ---: | ---: | ---: | --- | --- | --- | --- |",
        ]
        text += [line(row, figures[row.key]) for row in ROWS if row.source == key] + [""]
    return "\n".join([*text, FIRST])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="parts of the rows' keys")
    parser.add_argument(
        "--page-only", action="store_true", help="write the page from the figures that are there"
    )
    args = parser.parse_args()
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    chosen = [row for row in ROWS if not args.only or any(part in row.key for part in args.only.split(","))]
    with ThreadPoolExecutor(2) as pool:
        for row, figure in zip(chosen, pool.map(predicted, [] if args.page_only else chosen), strict=False):
            figures[row.key] = figure
            off = row.off_percent(figure)
            print(
                row.key,
                "" if off is None else f"{off:+.2f} %",
                figure["certainty"],
                figure["fits"],
                flush=True,
            )
    FIGURES.write_text(
        json.dumps({row.key: figures[row.key] for row in ROWS if row.key in figures}, indent=1) + "\n"
    )
    if missing := [row.key for row in ROWS if row.key not in figures]:
        print("no page without", ", ".join(missing))
        return 1
    PAGE.write_text(page(figures))
    return 1 if any(is_false(row, figures[row.key]) for row in ROWS) else 0


if __name__ == "__main__":
    raise SystemExit(main())
