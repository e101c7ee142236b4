"""Measures which seeded leaks are found, at which step and how correctly, and the verdicts on clean loops.

Run it with ``make bench-leaks``. The scripts are those of tests/leaks; the right answers stand in their
comments. The hold-out was written before the detector first ran, the trial and the unseen scripts before it
ran on programs of that kind.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import vramscope
from vramscope.analysis.leaks import findings
from vramscope.model.recording import Recording

HERE = Path(__file__).parent
STEPS, MORE_STEPS = 10, 30


def _corpus():  # noqa: ANN202 - a module
    spec = importlib.util.spec_from_file_location(
        "leaks_corpus", HERE.parent / "tests" / "leaks" / "corpus.py"
    )
    module = sys.modules["leaks_corpus"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def until(recording: Recording, n_steps: int) -> Recording:
    """Return the recording as it was after that many steps."""
    end = int(recording.steps.end_event[n_steps - 1])
    phases, labels, marks = recording.phases, recording.labels, recording.marks
    return replace(
        recording,
        trace=recording.trace.rows(slice(0, end)),
        steps=recording.steps.rows(slice(0, n_steps)),
        phases=phases.rows(phases.end_event <= end),
        labels=labels.rows(labels.event <= end),
        holders=recording.holders.rows(recording.holders.event <= end),
        marks=marks.rows(marks.event <= end),
        final=None,
    )


def first_found(corpus, script, recording: Recording) -> str:  # noqa: ANN001
    """Return the number of steps after which the leak is found, with its line."""
    for n_steps in range(1, len(recording.steps) + 1):
        result = corpus.judge(script, until(recording, n_steps))
        if result.has_right_line:
            return str(n_steps)
    return "-"


def print_rows(corpus, folder: str, paths: dict[str, Path]) -> None:  # noqa: ANN001
    """Print one row per script, and the sums."""
    print(f"\n{folder}\n")
    print(
        f"{'script':32} {'found at step':>13}  {'cause':20} {'right':5}  {'line':5}  {'holder':6}  bytes/step"
    )
    found = cause = line = holder = wrong = 0
    leaking = [script for script in corpus.scripts(folder) if script.name in paths]
    for script in leaking:
        (recording,) = vramscope.load(paths[script.name]).recordings
        result = corpus.judge(script, recording)
        leak = result.leak
        is_right = leak is not None and leak.cause == script.cause
        found, cause = found + (leak is not None), cause + is_right
        line, holder = line + result.has_right_line, holder + result.has_right_holder
        wrong += leak is not None and leak.holder is not None and not result.has_right_holder
        print(
            f"{script.name:32} {first_found(corpus, script, recording):>13}  {leak.cause if leak else '':20} "
            f"{_yes(is_right):5}  {_yes(result.has_right_line):5}  {_yes(result.has_right_holder):6}  "
            f"{leak.bytes_per_step if leak else 0:>10,}"
        )
    named = f"{holder} ({wrong} named wrongly)"
    print(f"{found} of {len(leaking)} found; cause right in {cause}, line in {line}, holder in {named}")


def _yes(is_right: bool) -> str:
    return "yes" if is_right else "NO"


def quiet(steps: int, paths: dict[str, Path]) -> None:
    """Print the findings on loops without a leak, including growth of the cache and outside of torch."""
    print(f"\nclean loops: {steps} steps\n")
    n_findings = 0
    for name, path in paths.items():
        (recording,) = vramscope.load(path).recordings
        result = recording.leaks()
        found = [f"{each.kind}: {each.claim}" for each in findings(result)]
        n_findings += len(found)
        print(
            f"{name:32} {len(result.iteration_boundaries):4} steps compared: {', '.join(found) or 'nothing'}"
        )
    print(f"{n_findings} findings in {len(paths)} clean loops")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python", default=sys.executable, help="another interpreter: the stand-in's launcher"
    )
    parser.add_argument("--device", default="simulated", choices=("simulated", "cuda"))
    parser.add_argument("--clean-steps", type=int, nargs="*", default=[30, 300])
    options = parser.parse_args()
    corpus = _corpus()
    # Failures of ours are warnings; the scripts' own are of no interest.
    env = {**os.environ, "PYTHONWARNINGS": "ignore,always::RuntimeWarning", "OMP_NUM_THREADS": "1"}

    def recorded(chosen: list, steps: int) -> dict[str, Path]:
        made = corpus.record(options.python, chosen, out, device=options.device, steps=steps, env=env)
        return {script.name: path for script, path in zip(chosen, made, strict=True)}

    with tempfile.TemporaryDirectory(prefix="vramscope-leaks-") as directory:
        out = Path(directory)
        for folder in ("leaking", "holdout", "trial", "unseen", "field"):
            chosen = [script for script in corpus.scripts(folder, options.device) if script.cause]
            late = [script for script in chosen if script.path.stem in corpus.NEED_MORE_STEPS]
            usual = [script for script in chosen if script not in late]
            print_rows(corpus, folder, recorded(usual, STEPS) | (recorded(late, MORE_STEPS) if late else {}))
        clean = [
            script
            for folder in ("clean", "holdout", "trial", "unseen")
            for script in corpus.scripts(folder, options.device)
            if not script.cause
        ]
        for steps in options.clean_steps:
            quiet(steps, recorded(clean, steps))


if __name__ == "__main__":
    main()
