"""Measures what recording costs real training programs, which run unmodified.

Checkouts of karpathy/nanoGPT, karpathy/minGPT and pytorch/examples are expected in one folder, under the
names ``nanoGPT``, ``minGPT`` and ``examples``; a program whose checkout or package is missing is reported.
Their data is made here: random, and of the sizes of the real one where that matters.

    python benchmarks/overhead_programs.py FOLDER [--pairs 3] [--steps 60] [--out OVERHEAD_PROGRAMS.md]

Run by a Python without a GPU it measures the simulated device, in the stand-in torch's genuine allocator.
The figure is CPU time between the program's optimizer steps: runs without and with recording alternate, each
in a process of its own, and the ratio of each pair counts. Beside it stands the floor, what torch alone takes
to see every allocation: an empty dispatch mode on the simulated device, a history that nobody reads on CUDA.
"""

import argparse
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
N_WARM = 5
"""Number of first steps that are not measured: imports, first use, lazy state of the optimizer."""
ON_CPU = "simulated device"
KINDS = ("plain", "floor", "recorded")
TITLE = """# What recording costs real training programs

`make bench-programs`. CPU time between optimizer steps, of runs in turns without recording, with what torch
alone takes to see every allocation, and with recording. On the simulated device that is an empty dispatch
mode; on CUDA a history that nobody reads: reading it costs as much again. The stand-in computes nothing, so
on a GPU that is kept busy the ratios are smaller.
"""


@dataclass(frozen=True)
class Program:
    """A training program and how it is called."""

    name: str
    script: str
    """Path below the folder of checkouts; a path that begins with ``_`` is below this one."""
    args: Sequence[str]
    prepare: Callable[[Path], None] | None = None
    """Writes its data below the working folder given."""
    needs: Sequence[str] = ()
    """Packages that it imports."""
    on_cuda: Sequence[str] | None = field(default=())
    """Further arguments on CUDA; None where it never leaves the CPU."""
    n_steps: int = 60
    is_run_in_checkout: bool = False
    """Whether it reads files of its checkout by relative paths."""


def main() -> int:
    """Measure every program; write the table."""
    parser = argparse.ArgumentParser(description="What recording costs real training programs.")
    parser.add_argument("folder", type=Path, help="the checkouts")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--out", type=Path, help="a Markdown file; its table is appended")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one run may take")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ON_CPU
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    wanted = set(filter(None, asked.only.split(",")))
    rows = []
    for program in PROGRAMS:
        if wanted and program.name not in wanted:
            continue
        rows.append(_row(program, asked, device))
        print(rows[-1], flush=True)
    text = report(rows, device, load)
    if asked.out:
        before = asked.out.read_text(encoding="utf-8") if asked.out.exists() else TITLE
        asked.out.write_text(before + text, encoding="utf-8")
        print("written:", asked.out)
    return 0


def report(rows: Sequence[str], device: str, load: str) -> str:
    """Return the table with its conditions."""
    conditions = (
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}. Load of the machine at the start: {load}.\n"
    )
    floor = "an empty dispatch mode" if device == ON_CPU else "torch's history, not read"
    heads = (
        "program",
        "CPU time of a step without, ms",
        "recorded ÷ without",
        f"{floor} ÷ without",
        "recorded ÷ without, by the clock",
    )
    lines = [
        f"\n## {device}\n",
        conditions,
        f"| {' | '.join(heads)} | parameters after 15 steps |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def _row(program: Program, asked: argparse.Namespace, device: str) -> str:
    on_cpu = device == ON_CPU
    missing = [name for name in program.needs if find_spec(name) is None]
    home = HERE if program.script.startswith("_") else asked.folder
    if missing or not (home / program.script).is_file():
        return f"| {program.name} | not run: {', '.join(missing) or program.script} is not here | | | | |"
    if not on_cpu and program.on_cuda is None:
        return f"| {program.name} | not run: it stays on the CPU | | | | |"
    try:
        rounds = _rounds(program, home, asked, on_cpu=on_cpu)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"| {program.name} | failed: {error} | | | | |"
    plain_ms = statistics.median(_per_step(each["plain"], "cpu_s") for each in rounds) * 1e3
    ratios = [
        _ratio(rounds, *of) for of in (("recorded", "cpu_s"), ("floor", "cpu_s"), ("recorded", "wall_s"))
    ]
    is_same = all(each["plain"]["checksums"] == each["recorded"]["checksums"] for each in rounds)
    same = "the same" if is_same else "**differ**"
    return (
        f"| {program.name} | {plain_ms:.1f} | {' | '.join(ratios)} | {same if on_cpu else 'no values here'} |"
    )


def _rounds(
    program: Program, home: Path, asked: argparse.Namespace, *, on_cpu: bool
) -> list[dict[str, dict[str, Any]]]:
    """Run the program in each kind, in turns."""
    with tempfile.TemporaryDirectory(prefix="vramscope-programs-") as folder:
        return [
            {
                kind: _run(program, home, Path(folder) / f"{number}-{kind}", asked.limit, kind, on_cpu=on_cpu)
                for kind in KINDS
            }
            for number in range(asked.pairs)
        ]


def _per_step(found: dict[str, Any], key: str) -> float:
    times = found[key]
    return float(times[-1] - times[N_WARM - 1]) / (len(times) - N_WARM)


def _ratio(rounds: Sequence[dict[str, dict[str, Any]]], kind: str, key: str) -> str:
    """Return the median of the ratios of this kind to the plain one, and their spread."""
    ratios = [_per_step(each[kind], key) / _per_step(each["plain"], key) for each in rounds]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _run(
    program: Program, home: Path, folder: Path, limit_s: float, kind: str, *, on_cpu: bool
) -> dict[str, Any]:
    """Run the program once in a working folder of its own, and return what the observer found."""
    work = folder / "work"
    work.mkdir(parents=True)
    if program.prepare is not None:
        program.prepare(work)
    args = [*program.args, *(() if on_cpu else program.on_cuda or ())]
    asked = {
        "script": str((home / program.script).resolve()),
        "args": [text.replace("{work}", str(work)) for text in args],
        "steps": program.n_steps,
        "kind": kind,
        "trace": str(folder / "trace"),
    }
    # minGPT's projects import the package at the root of their checkout.
    root = home / Path(program.script).parts[0] if home != HERE else HERE.parent
    path = [str(HERE.parent), str(root.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(HERE / "_overhead_program.py"), json.dumps(asked)],
        cwd=Path(asked["script"]).parent if program.is_run_in_checkout else work,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1][:120])
    found: dict[str, Any] = json.loads(lines[-1])
    if len(found["cpu_s"]) < program.n_steps:
        raise RuntimeError(f"only {len(found['cpu_s'])} of {program.n_steps} steps")
    return found


# -------------------------------------------------------------------------------------------- data


def _characters(work: Path) -> None:
    """Write random tokens where nanoGPT's configuration looks for its data."""
    generator = random.Random(0)
    for name, n in (("train", 200_000), ("val", 20_000)):
        tokens = (generator.randrange(65) for _ in range(n))
        (work / f"{name}.bin").write_bytes(b"".join(struct.pack("<H", token) for token in tokens))


def _digits(work: Path) -> None:
    """Write random images in MNIST's format next to the working folder."""
    raw = work.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = random.Random(0)
    for name, n in (("train", 12_800), ("t10k", 1_000)):
        images = struct.pack(">IIII", 0x803, n, 28, 28) + generator.randbytes(n * 784)
        labels = struct.pack(">II", 0x801, n) + bytes(generator.randrange(10) for _ in range(n))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def _words(work: Path) -> None:
    """Write random words as the corpus of the language model."""
    generator = random.Random(0)
    for name, n in (("train", 60_000), ("valid", 2_000), ("test", 2_000)):
        words = [f"w{generator.randrange(2_000)}" for _ in range(n)]
        lines = (" ".join(words[i : i + 20]) for i in range(0, n, 20))
        (work / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")


_NANO = (
    "--dataset={work}", "--compile=False", "--eval_iters=3", "--eval_interval=25", "--log_interval=10",
    "--gradient_accumulation_steps=2", "--block_size=64", "--batch_size=4", "--n_layer=4", "--n_head=4",
    "--n_embd=64", "--max_iters=100", "--dropout=0.0", "--out_dir={work}/out",
)  # fmt: skip
PROGRAMS = (
    Program(
        "nanoGPT with evaluation",
        "nanoGPT/train.py",
        (*_NANO, "--device=cpu", "--dtype=float32"),
        _characters,
        on_cuda=("--device=cuda", "--dtype=float16"),
        is_run_in_checkout=True,
    ),
    Program(
        "minGPT adder",
        "minGPT/projects/adder/adder.py",
        ("--trainer.max_iters=100", "--system.work_dir='{work}/out'"),
    ),
    Program("examples: mnist", "examples/mnist/main.py", ("--epochs=1",), _digits, ("torchvision",)),
    Program("examples: vae", "examples/vae/main.py", ("--epochs=1",), _digits, ("torchvision",)),
    Program(
        "examples: dcgan with two optimizers",
        "examples/dcgan/main.py",
        (
            "--dataset=fake",
            "--batchSize=8",
            "--ngf=16",
            "--ndf=16",
            "--niter=1",
            "--outf={work}",
            "--manualSeed=1",
        ),
        needs=("torchvision",),
        on_cuda=("--accel",),
    ),
    Program(
        "examples: word_language_model (LSTM and AdamW)",
        "examples/word_language_model/main.py",
        (
            "--data={work}",
            "--use-optimizer",
            "--epochs=1",
            "--emsize=64",
            "--nhid=64",
            "--save={work}/model.pt",
        ),
        _words,
        on_cuda=("--accel",),
    ),
    Program(
        "examples: reinforce (tiny operators)",
        "examples/reinforcement_learning/reinforce.py",
        (),
        needs=("gymnasium",),
        on_cuda=None,
        n_steps=40,
    ),
    Program(
        "transformers: Trainer of GPT-2", "_overhead_loops.py", ("trainer", "{work}"), needs=("transformers",)
    ),
    Program(
        "accelerate: a loop of BERT", "_overhead_loops.py", ("accelerate", "{work}"), needs=("accelerate",)
    ),
    Program("Lightning: Trainer", "_overhead_loops.py", ("lightning", "{work}"), needs=("lightning",)),
)

if __name__ == "__main__":
    sys.exit(main())
