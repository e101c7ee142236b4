"""How close do predictions come? Every program dry, and for real on torch's genuine allocator.

``python benchmarks/prediction.py [--set tuned|kept-aside|all] [--variants fp32,amp] [--out PREDICTION.md]``

Half of the programs were set aside by the hash of their names before anything was tuned on the others. Each
run is a process of its own. The stand-in (``make standin``) has no cuDNN, so both sides run without.
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
STANDIN = HERE.parent / ".cache" / "standin" / "2.13.0" / "python"
LONGEST_S = 240


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


CHILD = """
import json, os, sys, time
began = time.perf_counter()
sys.path.insert(0, {here!r})
import torch
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
import _prediction_programs as programs
{first}
for program, variant in {runs!r}:
    child = os.fork()
    if not child:
        began = time.perf_counter()
        try:
            answer = {ask}
        except Exception as error:
            answer = dict(error=f"{{type(error).__name__}}: {{error}}"[:300])
        answer |= dict(program=program, variant=variant, seconds=time.perf_counter() - began)
        print(json.dumps(answer), flush=True)
        time.sleep(0.2)
        os._exit(0)
    os.waitpid(child, 0)
"""
GENUINE = (
    "(programs.train(program, variant), "
    "dict(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved()))[1]"
)
DRY = "_prediction_dry.answer(programs, program, variant)"
FIRST = {GENUINE: "", DRY: "import _prediction_dry, vramscope.capture.predicted"}


def ask(python: Path, text: str, runs: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, object]]:
    """The answers of one side."""
    source = CHILD.format(here=str(HERE), runs=runs, ask=text, first=FIRST[text])
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [str(python), "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S * max(len(runs), 1),
        env=environment,
    )
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            answer = json.loads(line)
            found[answer["program"], answer["variant"]] = answer
    if not found:
        raise SystemExit(done.stderr[-2000:])
    return found


def measured(names: list[str], variants: list[str]) -> tuple[list[Result], list[str]]:
    """Results, and what failed."""
    runs = [(name, variant) for name in names for variant in variants]
    genuine = ask(STANDIN, GENUINE, runs)
    dry = ask(Path(sys.executable), DRY, runs)
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
                (int(one["allocated"]), int(one["reserved"])),  # type: ignore[call-overload]
                (int(other["allocated"]), int(other["reserved"])),  # type: ignore[call-overload]
                float(one["seconds"]),  # type: ignore[arg-type]
                str(one.get("reason", "")),
            )
        )
    return results, failed


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


def main() -> None:
    sys.path.insert(0, str(HERE))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("tuned", "kept-aside", "all"), default="all")
    parser.add_argument("--variants", default="fp32,amp,checkpoint,amp+checkpoint,accumulate")
    parser.add_argument("--programs", default="", help="only these, separated by commas")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    import _prediction_programs as programs

    text = ""
    for title, aside in (("Programs used while tuning", False), ("Programs kept aside", True)):
        if chosen.set == ("tuned" if aside else "kept-aside"):
            continue
        names = [name for name in programs.PROGRAMS if is_kept_aside(name) == aside]
        names = [name for name in names if not chosen.programs or name in chosen.programs.split(",")]
        if names:
            text += page(title, *measured(names, chosen.variants.split(","))) + "\n"
    print(text)
    if chosen.out:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
