"""Measures what a recorder that is left on says: forecasts, peaks of steps, and leaks.

Small trainings that grow, or do not, run to their end or until memory runs out, with ``every="auto"`` and
with events throughout. A forecast made on the way is held against the failed step, each step's peak against
``torch.cuda.max_memory_allocated()``, and what leaks against the recording with all events. Ten programs with
bugs that people write are held against what they leak in truth; ``--seeds 0`` runs these alone.

    python benchmarks/left_on.py [--seeds 2] [--jobs 2] [--out benchmarks/LEFT_ON.md]

It needs a GPU or the stand-in (``.cache/standin/2.13.0/python benchmarks/left_on.py``).
"""

import argparse
import json
import linecache
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from _left_on_child import GROWING, STEADY  # noqa: E402 -- after the path
from _left_on_programs import FAILS_AT, PROGRAMS  # noqa: E402 -- after the path

Result = dict[str, Any]


def main() -> int:
    """Run all trainings and write the page."""
    parser = argparse.ArgumentParser(description="What a recorder that is left on says.")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each kind")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "LEFT_ON.md")
    parser.add_argument("--programs-out", type=Path, default=HERE / "LEFT_ON_PROGRAMS.md")
    parser.add_argument("--json", type=Path, help="every single answer, too")
    parser.add_argument("--say", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.say:
        print(json.dumps(said(options.say)))
        return 0
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    asked = [(kind, seed) for seed in seeds for kind in (*GROWING, *STEADY)]
    named = [(name, 0) for name in PROGRAMS]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda each: _both(*each, Path(folder)), [*named, *asked]))
    if options.json:
        options.json.write_text(json.dumps(results), encoding="utf-8")
    programs, results = results[: len(named)], results[len(named) :]
    options.programs_out.write_text(programs_page(programs), encoding="utf-8")
    if results:
        options.out.write_text(page(results), encoding="utf-8")
    print(f"written: {options.programs_out}, {options.out if results else 'no trainings'}")
    return 0


def _both(kind: str, seed: int, folder: Path) -> Result:
    """Return one training recorded in some steps, and again in all."""
    return {every: _one(kind, seed, every, folder) for every in ("auto", "1")}


def _one(kind: str, seed: int, every: str, folder: Path) -> Result:
    place = folder / f"{kind.replace(' ', '_')}-{seed}-{every}"
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(HERE / "_left_on_child.py"),
        kind,
        str(seed),
        every,
        str(place),
    ]
    paths = [os.environ.get("PYTHONPATH", ""), str(HERE.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    if done.returncode:
        return {"kind": kind, "seed": seed, "error": done.stderr.strip().splitlines()[-1:]}
    found: Result = json.loads(done.stdout.strip().splitlines()[-1])
    asked = [sys.executable, "-W", "ignore", str(HERE / "left_on.py"), "--say", str(place)]
    answer = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=600, check=True)
    said_of = json.loads(answer.stdout)
    ours = said_of.pop("step_peaks")[: len(found["peaks"])]
    theirs = found.pop("peaks")
    n_different = sum(one != other for one, other in zip(ours, theirs, strict=False))
    n_bytes = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    peaks = {"n_peaks": len(theirs), "n_different": n_different, "n_missing": len(theirs) - len(ours)}
    return found | said_of | peaks | {"disk_bytes": n_bytes}


def said(place: str) -> Result:
    """Return what a recording says: the peak of each step, and what leaks by how much and who holds it."""
    import vramscope
    from vramscope.analysis.by_stack import by_stack
    from vramscope.analysis.folding import heaviest_line
    from vramscope.analysis.leaks import leaks
    from vramscope.analysis.oom import oom
    from vramscope.analysis.step_peaks import step_peaks

    recording = vramscope.load(place).recordings[0]
    peaks = step_peaks(recording).per_step.allocated_bytes
    grows, top = leaks(recording).leaks, by_stack(recording)
    return {
        "step_peaks": [int(value) for value in peaks],
        "leaks": sorted([str(leak.holder), round(leak.bytes_per_step)] for leak in grows),
        "lines": [_place(line.frame) for leak in grows for line in leak.lines[:1]],
        "failed_in": [f"step {place.step}, {_place(place.frame)}" for place in oom(recording).where],
        "peak_bytes": recording.peak().highest("allocated").n_bytes,
        "peak_line": _place(heaviest_line(recording.stacks, top.stack_id, top.bytes)),
    }


def _place(frame: Any) -> str:
    """Return the line of a frame as the program writes it."""
    return "no line" if frame is None else linecache.getline(frame.file, frame.line).strip()


def page(results: Sequence[Mapping[str, Result]]) -> str:
    """Return the whole page."""
    rows = [row for each in results for row in each.values() if "error" not in row]
    failed = [row for each in results for row in each.values() if "error" in row]
    growing = [row for row in rows if row["failed"] is not None]
    looks = [(row, look) for row in growing for look in row["looks"] if look["range"]]
    inside = [1 for row, look in looks if look["range"][0] <= row["failed"] <= look["range"][1]]
    steady = [row for row in rows if row["kind"] in STEADY]
    false = [1 for row in steady for look in row["looks"] if look["range"]]
    n_asked = sum(len(row["looks"]) for row in growing)
    day = datetime.now(tz=timezone.utc).date().isoformat()
    errors = f", {len(failed)} ended with an error" if failed else ""
    lines = f"""# What a recorder that is left on says

{day}, by `python benchmarks/left_on.py`, on {_device()}.

Each training of at most 1,200 steps runs twice: with `every="auto"` and with events throughout
({len(rows)} runs{errors}).

- **Forecasts**: of {len(growing)} runs that ran out of memory, asked {n_asked} times on the way, {len(looks)}
  times a step was named; the failed step lies in the stated range in {len(inside)} of them. In {len(steady)}
  runs that do not run out, a step was named {len(false)} times in {sum(len(row["looks"]) for row in steady)}.
- **Peaks**: {sum(row["n_different"] for row in rows)} of {sum(row["n_peaks"] for row in rows):,} steps differ
  from `torch.cuda.max_memory_allocated()`, and {sum(row["n_missing"] for row in rows)} are missing.

| training | failed at | inside: `auto` | events | leaks, bytes: `auto` | events | disk: `auto` | events |
| --- | ---: | ---: | ---: | --- | --- | ---: | ---: |""".splitlines()
    lines += [
        _row(each["auto"], each["1"]) for each in results if not any("error" in row for row in each.values())
    ]
    return "\n".join(lines) + "\n"


def programs_page(results: Sequence[Mapping[str, Result]]) -> str:
    """Return the section of the ten programs."""
    rows = [row for each in results for row in each.values() if "error" not in row]
    day = datetime.now(tz=timezone.utc).date().isoformat()
    errors = [f"{row['kind']}: {row['error']}" for each in results for row in each.values() if "error" in row]
    lines = f"""# Ten programs with a recorder that is left on

{day}, by `python benchmarks/left_on.py`, on {_device()}.

Each of `benchmarks/_left_on_programs.py` runs twice, with `every="auto"` and with events throughout; the last
one asks for a batch that does not fit in step {FAILS_AT}. Step peaks: {sum(r["n_different"] for r in rows)}
of {sum(r["n_peaks"] for r in rows):,} differ from `torch.cuda.max_memory_allocated()`, and
{sum(r["n_missing"] for r in rows)} are missing. What leaks is in bytes a step. {"; ".join(errors)}

| program | recorded | leaks in truth | by the recording | its line | peak, bytes | most there | failed in |
| --- | --- | --- | --- | --- | ---: | --- | --- |""".splitlines()
    lines += [_program_row(row) for each in results for row in each.values() if "error" not in row]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _program_row(row: Result) -> str:
    name = row["kind"]
    code = [", ".join(f"`{line}`" for line in row[key]) or "-" for key in ("lines", "failed_in")]
    peak, place = f"{row['peak_bytes']:,}", f"`{row['peak_line']}`"
    cells = [name, row["every"].replace("1", "events"), PROGRAMS[name][1], _leaks(row), code[0]]
    return f"| {' | '.join([*cells, peak, place, code[1]])} |"


def _row(auto: Result, full: Result) -> str:
    cells = [f"{auto['kind']} {auto['seed']}", "-" if auto["failed"] is None else f"{auto['failed']:,}"]
    cells += [_inside(row) for row in (auto, full)] + [_leaks(row) for row in (auto, full)]
    cells += [f"{row['disk_bytes'] / 1e6:.2f} MB" for row in (auto, full)]
    return f"| {' | '.join(cells)} |"


def _inside(row: Result) -> str:
    given = [look["range"] for look in row["looks"] if look["range"]]
    return f"{sum(low <= (row['failed'] or 0) <= high for low, high in given)} of {len(given)}"


def _leaks(row: Result) -> str:
    return ", ".join(f"`{holder}` {n_bytes:,}" for holder, n_bytes in row["leaks"]) or "none"


def _device() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
