"""Compares what ``fit`` predicts for strategies with genuine runs of them: ``make bench-strategies``.

Each model trains unchanged and recorded, and again with each strategy, in a process of its own. A figure is
right if torch's own peak lies within the stated interval. A sign is wrong if an advised strategy raises the
peak, or one that is said not to lower it does. The models of a blind trial were written and set aside, and
first run after the rules were final.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import vramscope
from vramscope.analysis.strategies import Strategies
from vramscope.model.recording import Recording
from vramscope.units import format_bytes

HERE = Path(__file__).parent
ROOT = HERE.parent
STANDIN = ROOT / ".cache" / "standin" / "2.13.0" / "python"
LIMIT_S = 300
WORTH_IT = 0.01
ROUNDING_BYTES = 4096
_NOT_INSTALLED = 3
_FIRST_RUNS = (
    "These are the answers of the present rules. The first runs of the fifth to the seventh blind trial, as "
    "they were, are in [STRATEGIES_FIRST_RUNS.md](STRATEGIES_FIRST_RUNS.md)."
)
SAID = {
    "checkpointed": "activation checkpointing",
    "micro": "2 micro-batches",
    "fused": "fused optimizer",
    "eight": "optimizer state in 8 bits",
    "momentum": "optimizer with one moment",
}
GROUPS = {
    "tests": "The models of the tests",
    "known": "Programs that people have",
    "blind_1": "First blind trial: one figure was outside (63.3, not 73.8 MiB), and a rule was changed",
    "blind_2": "Second blind trial: one figure was outside (123, not 125 MiB), and a rule was changed",
    "blind_3": "Third blind trial: none was outside, then and now",
    "blind_4": "Fourth blind trial: one figure was outside (118, not 115 MiB), and an interval was widened",
    "blind_5": "Fifth blind trial: none was outside; one of 'no effect' raised the peak by 3 %",
    "blind_6": "Sixth blind trial: one figure was outside (137, not 184 MiB), one 'not lower' fell by 10 %",
    "blind_7": "Seventh blind trial, by an author who had not read the rules: none was outside, none wrong",
}
NAMES = {
    "tests": (
        "perceptron", "written_out", "encoder", "convolutions", "resnet", "unet", "translator", "gpt",
        "recurrent", "perceptron-few", "translator-few", "recurrent-few", "recommender-few",
    ),
    "known": (
        "attention by hand", "vramscope demo", "nanoGPT", "transformers BERT", "transformers BERT, eager",
        "transformers GPT-2",
    ),
    "blind_1": (
        "vision (attention by hand)", "llama (norms by hand)", "mixer", "wave (gated convolutions)",
        "mobile (inverted bottlenecks)", "scores (contrastive)",
    ),
    "blind_2": (
        "dense (concatenations)", "variational autoencoder", "pairs of a batch", "perceiver (einsum)",
        "points", "encoder layers, norms first",
    ),
    "blind_3": (
        "gated layers, bias of distances", "pyramid (interpolation)", "speech (glu, MultiheadAttention)",
        "linear attention (cumsum)", "bags of words",
    ),
    "blind_4": (
        "rotary positions, grouped heads", "shifted windows", "temporal (dilated, weight norm)",
        "experts (all of them, best two)", "messages along edges", "diffusion (transposed convolutions)",
        "tied embedding, highway",
    ),
    "blind_5": (
        "state space, scanned", "capsules", "one layer, five times", "images and fixed prompts",
        "sampled weights", "super-resolution", "rays", "graph attention", "convolutions with channel norms",
        "words, several widths", "local attention", "video", "tables", "codes",
    ),
    "blind_6": (
        "normalizing flow", "spectral operator", "written memory", "forces of an energy", "generated weights",
        "differential equation", "settled layer", "adapters", "kernels and inducing points",
        "optimal transport", "funnel", "masked pixels", "splines", "involutions",
    ),
    "blind_7": (
        "retention", "one expert a token", "triangles of pairs", "book of codes", "distilled",
        "merged tokens", "cells both ways", "penalized", "sorted sets", "separable signals",
        "written in place",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One strategy on one model."""

    model: str
    how: str
    peak: int
    truth: int
    said: str
    verdict: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--runs", type=Path, help="keep the runs there, and use those that are there already")
    parser.add_argument("--out", type=Path, default=HERE / "STRATEGIES.md")
    args = parser.parse_args()
    if not STANDIN.exists():
        print("no stand-in for a GPU: make standin", file=sys.stderr)
        return 1
    tables = {group: list(_rows(group, args.runs)) for group in args.groups.split(",")}
    args.out.write_text(_page(tables))
    return int(any(row.verdict.startswith("WRONG") for rows in tables.values() for row in rows))


def _rows(group: str, runs: Path | None) -> Iterator[Row]:
    for name in NAMES[group]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if runs is None else runs / group / name
            folder.mkdir(parents=True, exist_ok=True)
            status = 0 if (folder / "done").exists() else _run(folder, group, name)
            if status == _NOT_INSTALLED:
                print(f"{name}: not installed, left out", file=sys.stderr)
                continue
            if status:
                raise RuntimeError(f"{name}: the run ended with {status}")
            yield from _compared(name, folder)


def _run(folder: Path, group: str, name: str) -> int:
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    child = [STANDIN, HERE / "_strategy_child.py", folder, group, name]
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(child, check=False, env=environment, timeout=LIMIT_S).returncode


def _compared(name: str, folder: Path) -> Iterator[Row]:
    (recording,) = vramscope.load(folder / "plain").recordings
    found: Strategies = recording.strategies()
    peak = json.loads((folder / "plain.json").read_text())
    _must_be(recording, peak)
    for how, word in SAID.items():
        if not (folder / f"{how}.json").exists():
            continue
        truth = json.loads((folder / f"{how}.json").read_text())
        said = _said(found, word, peak, truth)
        if said is not None:
            row = Row(name, how, peak, truth, *said)
            print(f"{name:32} {how:13} {format_bytes(truth):>9}  {row.said:42} {row.verdict}", flush=True)
            yield row


def _must_be(recording: Recording, peak: int) -> None:
    recorded = recording.peak().allocated.n_bytes
    if recorded != peak:
        raise RuntimeError(f"the recording's peak is {recorded}, torch's {peak}")


def _said(found: Strategies, word: str, peak: int, truth: int) -> tuple[str, str] | None:
    """Return the prediction and whether it was right; None if there was no prediction."""
    for each in found.advised:
        if each.name.startswith(word):
            verdict = "right" if each.low_bytes <= truth <= each.high_bytes else "OUTSIDE"
            span = f"{format_bytes(each.low_bytes)} to {format_bytes(each.high_bytes)}"
            said = f"{format_bytes(each.peak_bytes)} ({span})"
            return said, "WRONG SIGN" if truth >= peak else verdict
    if any(each.name.startswith(word) for each in found.undecided):
        return "cannot tell", "undecided"
    if any(name.startswith(word) for name in found.without_effect):
        return "not lower", "right" if truth >= (1 - WORTH_IT) * peak - ROUNDING_BYTES else "WRONG EFFECT"
    return None


def _page(tables: dict[str, list[Row]]) -> str:
    lines = ["# Strategies against genuine runs", "", " ".join(__doc__.split("\n\n")[1].split()), ""]
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    lines += [f"Torch 2.13.0's own allocator, on the stand-in, {today}. Percentages are of the peak.", ""]
    lines += [_FIRST_RUNS, ""]
    for group, rows in tables.items():
        counts = Counter(row.verdict for row in rows)
        summary = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        lines += [f"## {GROUPS[group]}", "", f"{len(rows)} cases: {summary}.", ""]
        lines += [
            "| model | strategy | as it is | with it, genuine | with it, as `fit` says | |",
            "| --- " * 6 + "|",
        ]
        lines += [
            f"| {row.model} | {row.how} | {format_bytes(row.peak)} | {format_bytes(row.truth)} "
            f"({(row.truth - row.peak) / row.peak:+.1%}) | {row.said} | {row.verdict} |"
            for row in rows
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
