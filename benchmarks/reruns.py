"""Holds ``fit --rerun`` against genuine runs: ``python benchmarks/reruns.py --set tuned|kept-aside``.

Each of twelve models trains on torch's own allocator, recorded; ``fit RUN --rerun`` then runs it dry with
each what-if, and the program itself trains with that change, written by its author. Half of the models were
set aside by the hash of their names before any of them was run, to be run once, at the end.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vramscope.units import format_bytes

HERE = Path(__file__).parent
ROOT = HERE.parent
STANDIN = Path(os.environ.get("STANDIN", ROOT / ".cache" / "standin" / "2.13.0" / "python"))
PROGRAM = HERE / "_rerun_program.py"
LONGEST_S = 3600
NAMES = (
    "gpt", "llama", "encoder", "distances", "experts", "scan", "mixer", "denoiser", "perceptron",
    "translator", "recommender", "convolutions",
)  # fmt: skip
WITHOUT_SEQUENCE = ("recommender", "convolutions")
BATCH, LENGTH = 16, 128
WHAT_IFS = {
    "mixed precision": ("--how", "amp"),
    "activation checkpointing": ("--how", "checkpointed"),
    "mixed precision and checkpointing": ("--how", "both"),
    "2 micro-batches": ("--how", "micro"),
    "fused optimizer": ("--how", "fused"),
    "optimizer without foreach": ("--how", "loop"),
    "optimizer with one moment": ("--how", "momentum"),
    "LoRA of rank 16": ("--how", "lora"),
    "ZeRO-3/FSDP: state, gradients and parameters over 8 GPUs": ("--how", "sharded"),
    "batch doubled": ("--batch-size", str(2 * BATCH)),
    "sequence doubled": ("--seq-len", str(2 * LENGTH)),
}


class Row(NamedTuple):
    """One what-if of one model; peaks in bytes, allocated and reserved."""

    model: str
    what: str
    before: tuple[int, int]
    genuine: tuple[int, int]
    predicted: tuple[int, int] | None
    effect: str
    problem: str

    def off(self, quantity: int) -> float | None:
        """Return by how many percent the prediction is off."""
        if self.predicted is None:
            return None
        return 100 * (self.predicted[quantity] / self.genuine[quantity] - 1)

    @property
    def has_wrong_sign(self) -> bool:
        """Whether the stated effect is the opposite of what happened."""
        moved = self.genuine[0] - self.before[0]
        return (self.effect == "saves" and moved >= 0) or (self.effect == "raises" and moved <= 0)


def is_kept_aside(name: str) -> bool:
    """Decided by the name alone: every second one in the order of their hashes."""
    ordered = sorted(NAMES, key=lambda each: hashlib.sha256(each.encode()).digest())
    return ordered.index(name) % 2 == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", choices=("tuned", "kept-aside", "all"), default="all")
    parser.add_argument("--models", default="", help="only these, separated by commas")
    parser.add_argument("--only", default="", help="only what-ifs whose names contain this")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    args = parser.parse_args()
    if not STANDIN.exists():
        print("no stand-in for a GPU: make standin", file=sys.stderr)
        return 1
    wanted = args.models.split(",") if args.models else NAMES
    chosen = [
        name for name in wanted if args.set == "all" or is_kept_aside(name) == (args.set == "kept-aside")
    ]
    rows = []
    for name in chosen:
        for row in _rows(name, args.only):
            rows.append(row)
            print(_line(row), flush=True)
    text = _page(args.set, rows)
    print(text)
    if args.out is not None:
        with args.out.open("a") as file:
            file.write(text)
    return int(any(row.has_wrong_sign for row in rows))


def _rows(name: str, only: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = [name, "--batch-size", str(BATCH), "--seq-len", str(LENGTH)]
        wanted = {
            what: change
            for what, change in WHAT_IFS.items()
            if only in what and (what != "sequence doubled" or name not in WITHOUT_SEQUENCE)
        }
        runs = [[*plain, "--record", str(folder / "run")], *([*plain, *change] for change in wanted.values())]
        before, *changed = _genuine(folder, runs)
        answer = _fit(folder / "run", plain)
        found = {row["name"]: row for row in answer["rows"]}
        as_it_is = {"peak": answer["as_it_is"], "effect": "", "problem": None}
        yield _row(name, "as it is", before, before, as_it_is)
        for what, genuine in zip(wanted, changed, strict=True):
            yield _row(name, what, before, genuine, found[what])


def _row(name: str, what: str, before: tuple[int, int], genuine: tuple[int, int], found: dict) -> Row:
    peak, predicted = found["peak"], None
    if peak is not None and peak["certainty"] != "cannot_tell":
        predicted = peak["reached_allocated_bytes"], peak["reached_reserved_bytes"]
    problem = found["problem"] or (peak["reason"] if peak is not None else "")
    return Row(name, what, before, genuine, predicted, found["effect"], problem)


CHILD = """
import os, sys
sys.path.insert(0, {here!r})
import torch
import _rerun_program
for number, arguments in enumerate({runs!r}):
    child = os.fork()
    if not child:
        _rerun_program.main([*arguments, "--truth", "{folder}/" + str(number)])
        os._exit(0)
    os.waitpid(child, 0)
"""


def _genuine(folder: Path, runs: list[list[str]]) -> list[tuple[int, int]]:
    """Return torch's own peaks of each run, which is a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    text = CHILD.format(here=str(HERE), runs=runs, folder=folder)
    subprocess.run([str(STANDIN), "-c", text], check=True, env=environment, timeout=LONGEST_S)
    found = [json.loads((folder / str(number)).read_text()) for number in range(len(runs))]
    return [(allocated, reserved) for allocated, reserved in found]


def _fit(run: Path, plain: list[str]) -> dict:
    program = " ".join([str(PROGRAM), *plain])
    command = [sys.executable, "-m", "vramscope", "fit", str(run), "--json", f"--rerun={program}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, env=environment, timeout=LONGEST_S, stdout=subprocess.PIPE)
    answer: dict = json.loads(done.stdout)["reruns"]
    if answer["problem"]:
        raise RuntimeError(answer["problem"])
    return answer


def _line(row: Row) -> str:
    figures = [f"{off:+.3f} %" if (off := row.off(at)) is not None else "–" for at in (0, 1)]
    cells = [row.model, row.what, *map(format_bytes, (row.before[0], row.genuine[0])), figures[0]]
    cells += [format_bytes(row.genuine[1]), figures[1], row.effect]
    return f"| {' | '.join(cells)} |"


def _page(name: str, rows: list[Row]) -> str:
    changed = [row for row in rows if row.what != "as it is"]
    stated = [row for row in changed if row.predicted is not None]
    lines = [f"## {name}", ""]
    signs = sum(row.has_wrong_sign for row in changed)
    unknown = sum(row.effect == "cannot tell" for row in changed)
    n_models = len({row.model for row in rows})
    lines.append(
        f"{len(changed)} what-ifs of {n_models} models: {len(stated)} with a figure, "
        f"{unknown} whose sign is unknown, {signs} with a wrong sign."
    )
    lines.append("")
    for quantity, word in enumerate(("allocated", "reserved")):
        off = sorted(abs(row.off(quantity) or 0.0) for row in stated)
        if off:
            p95 = off[min(len(off) - 1, round(0.95 * len(off)))]
            lines.append(
                f"- {word}: p50 {statistics.median(off):.3f} %, p95 {p95:.3f} %, worst {off[-1]:.3f} %"
            )
    lines += [
        "",
        "| model | what-if | as it is | genuine | off | genuine reserved | off | stated |",
        "| --- " * 8 + "|",
    ]
    lines += [_line(row) for row in rows]
    problems = {(row.model, row.problem) for row in rows if row.problem}
    if problems:
        lines += ["", *(f"- {model}: {problem}" for model, problem in sorted(problems))]
    return "\n".join([*lines, "", ""])


if __name__ == "__main__":
    sys.exit(main())
