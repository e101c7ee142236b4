"""Measure the dashboard in Debian's Chromium: tasks, failures, shifts, crowds, speed, exactness, in a table.

Traces come from ``generate.py``; real files of one and of several devices are checked for exactness where
they lie beside the repository. Times are those of the wall, so the load of the machine is printed with them.

    python benchmarks/dashboard.py --events 1000000,5000000 --out benchmarks/DASHBOARD.md
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import dashboard_exact
import dashboard_failures
import dashboard_many
import dashboard_speed
import dashboard_tasks
from _dashboard_browser import HEAD, Row, load

SNAPSHOTS = Path(__file__).parents[2] / "shared" / "snapshots"
REAL = ("snap_t210_compiled_ce_8dev.pickle", "snap_t211_train_22k.pickle")
"""A file of eight devices, one of which was used; and the longest file of one device."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", default="1000000,5000000", help="sizes of the generated files")
    real = [file for name in REAL if (file := SNAPSHOTS / name).exists()]
    parser.add_argument(
        "--files", nargs="*", type=Path, default=real, help="whose figures have to be exact too"
    )
    parser.add_argument("--moves", type=int, default=dashboard_speed.N_MOVES, help="on each page")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    args = parser.parse_args()
    began, lines = monotonic(), [f"At the start: {load()}.", "", *HEAD.splitlines()]
    print(*lines, sep="\n", flush=True)
    for row in _rows(args):
        lines.append(row.line())
        print(lines[-1], flush=True)
    lines += ["", f"At the end, after {monotonic() - began:.0f} s: {load()}."]
    print(*lines[-2:], sep="\n")
    if args.out:
        words = "Times are those of the wall; frames are drawn without a GPU."
        title = f"# The dashboard in a browser\n\n`make bench-dashboard`. {words}\n"
        args.out.write_text("\n".join([title, *lines]) + "\n")


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    yield from dashboard_tasks.rows()
    yield from dashboard_failures.rows()
    yield from dashboard_many.rows()
    with tempfile.TemporaryDirectory() as folder:
        files = [_generated(Path(folder), int(n)) for n in args.events.split(",") if n]
        for file in files:
            yield from dashboard_speed.rows(file, args.moves)
        for file in [*files, *args.files]:
            yield from dashboard_exact.rows(file)


def _generated(folder: Path, n_events: int) -> Path:
    path = folder / f"{n_events:,} events.pickle"
    script = str(Path(__file__).with_name("generate.py"))
    command = [sys.executable, script, "--events", str(n_events), str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    main()
