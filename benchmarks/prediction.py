"""How close do predictions come? Every program dry, and for real on torch's genuine allocator.

``python benchmarks/prediction.py [--set tuned|kept-aside|all] [--variants fp32,amp] [--out PREDICTION.md]``

``--torch 2.13.0,2.14.1`` names the versions; both sides run on each, so the dry run is beside a visible card.

Half of the programs were set aside by the hash of their names before anything was tuned on the others. Each
run is a process of its own. The stand-in (``make standin``) has no cuDNN, so both sides run without.

Some of the programs also run out of memory, on both sides, with capacities between the peaks of their phases
(``--out-of-memory only`` runs nothing else, ``no`` leaves it out). ``--large only`` measures what the command
takes for models of 7 B parameters. ``GENUINE_PYTHON`` names another Python for the genuine side, such as one
whose torch sees a GPU.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
STANDINS = HERE.parent / ".cache" / "standin"
VERSIONS = "2.13.0,2.14.1,2.15.0"
LONGEST_S = 240

INTRODUCTION = """# Predictions against torch's genuine allocator

Each program runs twice on each version of torch: dry (`vramscope.predict`), and for real on the allocator of
that version over the stand-in, which has no cuDNN; both sides run without it. *off* is predicted against
genuine, of the peak of allocated and of reserved memory. The seconds are CPU time of the dry run alone. The
programs were written before anything was tuned on them, and halved by the hash of their names; Perceptron,
Pictures and Waves came with torch 2.15 and the convolutions.

These are the figures of the present code. The first run of each half, as it was, is in
[PREDICTION_FIRST_RUNS.md](PREDICTION_FIRST_RUNS.md); what it showed has been repaired since, in both halves.
`make bench-predict` measures all of it again.

"""


class Result(NamedTuple):
    """One program in one variant, in bytes."""

    program: str
    variant: str
    certainty: str
    predicted: tuple[int, int]
    genuine: tuple[int, int]
    seconds: float
    reason: str

    def off(self, quantity: int) -> float:
        """How far the prediction is off, in percent."""
        return 100 * (self.predicted[quantity] / self.genuine[quantity] - 1)


def is_kept_aside(name: str) -> bool:
    """Decided by the name alone."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


class Cost(NamedTuple):
    """What ``vramscope predict`` took for one program, from its start to its answer."""

    program: str
    wall_s: float
    cpu_s: float
    """CPU time of all processes of the dry run."""
    most_bytes: int
    """The largest resident memory of one of its processes."""
    peak_bytes: int
    certainty: str


class Shortage(NamedTuple):
    """One program with too little memory: where it runs out, predicted and genuine."""

    program: str
    variant: str
    limit_bytes: int
    phase: str
    predicted: tuple[str, int]
    """The operator and the line of the program."""
    genuine: tuple[str, int]


CHILD = """
import json, os, sys, time
sys.path.insert(0, {here!r})
import torch
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
import _prediction_programs as programs
{first}
for run in {runs!r}:
    child = os.fork()
    if not child:
        began = time.process_time()
        try:
            answer = {ask}(programs, *run)
        except Exception as error:
            answer = dict(error=f"{{type(error).__name__}}: {{error}}"[:300])
        answer |= dict(run=run, seconds=time.process_time() - began)
        print(json.dumps(answer), flush=True)
        time.sleep(0.2)
        os._exit(0)
    os.waitpid(child, 0)
"""
GENUINE = "_prediction_genuine"
DRY = "_prediction_dry"
FIRST = {GENUINE: "import _prediction_genuine", DRY: "import _prediction_dry, vramscope.prediction.dry"}
SHORT_OF_MEMORY = (
    ("gptsgd", "fp32"),
    ("llama", "amp"),
    ("bert", "checkpoint"),
    ("moe", "amp+checkpoint"),
    ("vit", "fp32"),
    ("mixer", "amp"),
    ("dlrm", "fp32"),
    ("translation", "accumulate"),
)
MOST_LIMITS = 3
CHUNK = 40
"""Runs of one process that has imported torch."""


def python_of(home: str, version: str) -> Path:
    """Return the Python of one side; that of the dry run sees the same card."""
    standin = STANDINS / version / "python"
    return Path(os.environ.get("GENUINE_PYTHON", standin)) if home == GENUINE else standin


def ask(
    version: str, home: str, question: str, runs: list[tuple[object, ...]]
) -> dict[tuple[object, ...], dict]:
    """Return the answers of one side on one version of torch, each by its run."""
    python = python_of(home, version)
    source = CHILD.format(here=str(HERE), runs=runs, ask=f"{home}.{question}", first=FIRST[home])
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [str(python), "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S * max(len(runs), 1),
        env=environment,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        raise SystemExit(done.stderr[-2000:])
    return {tuple(answer["run"]): answer for answer in answers}


def answers(
    version: str, home: str, runs: list[tuple[str, str]], kept: Path | None
) -> dict[tuple[object, ...], dict]:
    """Return the peaks of one side; those in the file *kept* are not measured again."""
    known = {} if kept is None or not kept.exists() else json.loads(kept.read_text())
    names = {run: " ".join((version, home, *run)) for run in runs}
    missing = [run for run in runs if names[run] not in known]
    for chunk in (missing[place : place + CHUNK] for place in range(0, len(missing), CHUNK)):
        found = ask(version, home, "answer", [*chunk])
        known |= {names[run]: found[run] for run in chunk if run in found}
        if kept is not None:
            kept.write_text(json.dumps(known))
    return {run: known[name] for run, name in names.items() if name in known}


def measured(
    version: str, names: list[str], variants: list[str], kept: Path | None
) -> tuple[list[Result], list[str]]:
    """Results on one version of torch, and what failed."""
    runs = [(name, variant) for name in names for variant in variants]
    genuine, dry = (answers(version, home, runs, kept) for home in (GENUINE, DRY))
    results, failed = [], []
    for key in runs:
        one, other = dry.get(key, {"error": "no answer"}), genuine.get(key, {"error": "no answer"})
        if "error" in one or "error" in other:
            said = f"predicted {one.get('error', 'fine')}; genuine {other.get('error', 'fine')}"
            failed.append(f"{key[0]}, {key[1]}: {said}")
            continue
        results.append(
            Result(
                *key,
                str(one["certainty"]),
                (one["allocated"], one["reserved"]),
                (other["allocated"], other["reserved"]),
                one["seconds"],
                str(one.get("reason", "")),
            )
        )
    return results, failed


def shortages(version: str) -> list[Shortage]:
    """Return where memory runs out on one version, for capacities halfway between the peaks of phases."""
    between = ask(version, DRY, "limits", [*SHORT_OF_MEMORY])
    runs: list[tuple[object, ...]] = []
    for run, answer in between.items():
        limits = answer["limits"]
        chosen = range(0, len(limits), -(-len(limits) // MOST_LIMITS))
        runs += [(*run, limits[place]) for place in chosen]
    dry, genuine = (ask(version, home, "out_of_memory", runs) for home in (DRY, GENUINE))
    return [
        Shortage(
            *run,
            dry[run].get("phase", ""),
            (dry[run].get("operator", dry[run].get("error", "")), dry[run].get("line", 0)),
            (genuine[run].get("operator", genuine[run].get("error", "")), genuine[run].get("line", 0)),
        )
        for run in runs
    ]


def shortage_page(version: str) -> str:
    """Return the table of operators and lines of one version as Markdown."""
    found = shortages(version)
    same = sum(one.predicted == one.genuine for one in found)
    lines = [
        f"## Where memory runs out, torch {version}",
        "",
        "The genuine operator is read from the C++ frames that torch's own snapshot has of the failure, the",
        "genuine line from the traceback. Each capacity lies halfway between the peaks of two phases.",
        "",
        f"Operator and line are the same in {same} of {len(found)} cases.",
        "",
        "| program | variant | capacity MiB | phase | predicted | line | genuine | line |",
        "| --- | --- | --: | --- | --- | --: | --- | --: |",
    ]
    lines += [
        f"| {one.program} | {one.variant} | {one.limit_bytes >> 20} | {one.phase} | {one.predicted[0]} | "
        f"{one.predicted[1]} | {one.genuine[0]} | {one.genuine[1]} |"
        for one in found
    ]
    return "\n".join(lines) + "\n"


LARGE = ("Llama-2-7B", "Mistral-7B", "GPT-NeoX-6.9B", "GPT-J-6B", "Qwen2-7B")
LARGE_TIMES = 3
MEASURED = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True)
wall_s, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
found = json.loads(done.stdout)
print(json.dumps([wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss << 10,
                  found["peak_allocated_bytes"], found["certainty"]]))
"""


def cost(program: str) -> Cost:
    """Return what one prediction takes, imports included, as the operating system counts it."""
    script = str(HERE / "_prediction_large.py")
    command = [sys.executable, "-m", "vramscope", "predict", "--json", script, program]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], capture_output=True, text=True, check=True
    )
    return Cost(program, *json.loads(done.stdout))


def cost_page(rounds: int) -> str:
    """Return what predictions of large programs take, of several interleaved rounds, as Markdown."""
    found = [[cost(program) for program in LARGE] for _ in range(rounds)]
    lines = [
        "## What a prediction takes",
        "",
        "`vramscope predict` of three steps of models of about 7 B parameters (transformers, random weights,",
        "bfloat16, AdamW, 1,024 tokens), from its start to its answer, imports included: the median and the",
        f"least of {rounds} rounds. Cores: {os.cpu_count()}; load: {os.getloadavg()[0]:.1f} at the end.",
        "Memory is the resident memory of the largest process on the host.",
        "",
        "| program | predicted GiB | certainty | s | least s | CPU s | least CPU s | host MB |",
        "| --- | --: | --- | --: | --: | --: | --: | --: |",
    ]
    for each in zip(*found, strict=True):
        seconds = [sorted(one.wall_s for one in each), sorted(one.cpu_s for one in each)]
        columns = " | ".join(f"{statistics.median(of):.1f} | {of[0]:.1f}" for of in seconds)
        most_mb = max(one.most_bytes for one in each) / 1e6
        first = f"{each[0].program} | {each[0].peak_bytes / (1 << 30):.2f} | {each[0].certainty}"
        lines.append(f"| {first} | {columns} | {most_mb:.0f} |")
    return "\n".join(lines) + "\n"


def quantiles(values: list[float]) -> str:
    """p50, p95 and the worst, of absolute values in percent."""
    order = sorted(map(abs, values))
    p95 = order[min(len(order) - 1, int(0.95 * len(order)))]
    return f"{statistics.median(order):.3f} % | {p95:.3f} % | {order[-1]:.3f} %"


def page(title: str, results: list[Result], failed: list[str]) -> str:
    """One set as Markdown."""
    mib = 1 << 20
    lines = [
        f"## {title}",
        "",
        "| certainty | runs | quantity | p50 | p95 | worst |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for certainty in ("checked", "estimate", "cannot_tell"):
        chosen = [one for one in results if one.certainty == certainty]
        for place, quantity in enumerate(("allocated", "reserved") if chosen else ()):
            found = quantiles([one.off(place) for one in chosen])
            lines.append(f"| {certainty} | {len(chosen)} | {quantity} | {found} |")
    lines += [
        "",
        "| program | variant | certainty | genuine MiB | off | genuine reserved | off | s |",
        "| --- | --- | --- | --: | --: | --: | --: | --: |",
    ]
    for one in results:
        lines.append(
            f"| {one.program} | {one.variant} | {one.certainty} | {one.genuine[0] / mib:.1f} | "
            f"{one.off(0):+.3f} % | {one.genuine[1] / mib:.0f} | {one.off(1):+.3f} % | {one.seconds:.1f} |"
        )
    if failed:
        lines += ["", "Not compared:", "", *(f"- {text}" for text in failed)]
    reasons = sorted({f"{one.program}: {one.reason}" for one in results if one.reason})
    if reasons:
        lines += ["", "Why they are not checked:", "", *(f"- {text}" for text in reasons)]
    return "\n".join(lines) + "\n"


def pages(version: str, every: list[str], chosen: argparse.Namespace) -> str:
    """Return the tables of one version as Markdown: what was tuned on, and what was kept aside."""
    text = ""
    wanted = [name for name in every if not chosen.programs or name in chosen.programs.split(",")]
    for title, aside in (("Programs used while tuning", False), ("Programs kept aside", True)):
        names = [name for name in wanted if is_kept_aside(name) == aside]
        if names and chosen.set != ("tuned" if aside else "kept-aside"):
            found = measured(version, names, chosen.variants.split(","), chosen.kept)
            text += page(f"{title}, torch {version}", *found) + "\n"
    return text


def main() -> None:
    sys.path.insert(0, str(HERE))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("tuned", "kept-aside", "all"), default="all")
    parser.add_argument("--variants", default="fp32,amp,checkpoint,amp+checkpoint,accumulate")
    parser.add_argument("--torch", default=VERSIONS, help="versions, separated by commas (%(default)s)")
    parser.add_argument("--programs", default="", help="only these, separated by commas")
    parser.add_argument("--out-of-memory", choices=("yes", "no", "only"), default="yes")
    parser.add_argument("--large", choices=("yes", "no", "only"), default="yes")
    parser.add_argument("--kept", type=Path, help="a file that keeps peaks between calls")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    import _prediction_programs as programs

    strange = {*chosen.variants.split(",")} - {*programs.VARIANTS}
    if strange:  # a program ignores a word that it does not have, and would be the plain one
        parser.error(f"no such variant: {', '.join(strange)}; there are {', '.join(programs.VARIANTS)}")
    text = INTRODUCTION
    if chosen.large != "no" and chosen.out_of_memory != "only":
        text += cost_page(LARGE_TIMES) + "\n"
    for version in chosen.torch.split(","):
        if chosen.out_of_memory != "no" and chosen.large != "only":
            text += shortage_page(version) + "\n"
        if "only" not in (chosen.out_of_memory, chosen.large):
            text += pages(version, [*programs.PROGRAMS], chosen)
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
