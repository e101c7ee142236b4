"""Fails each system call of a recording in turn: a process that has torch loaded, and forks for each case.

    python benchmarks/_attack_faults.py FOLDER [--calls 3,17] [--seed 0] [--device cuda]

Each line that it prints is a case as JSON. The program that is recorded enters three blocks; ``number`` is
the position of the call among all calls of this process that concern files below its run's directory.
"""

import argparse
import atexit
import errno
import fcntl
import io
import json
import os
import random
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import vramscope
from vramscope.loading import load
from vramscope.recorder.pipeline import import_everything

ERRORS = ("EIO", "EACCES", "ENOSPC", "ESTALE", "EMFILE")
LASTS = ("once", "this function", "all")
"""How long a fault lasts: for that call, for each later one of its function, for each later one."""
_BY_PATH = ("open", "mkdir", "stat", "lstat", "scandir", "listdir", "rename", "replace", "unlink", "rmdir")
_BY_DESCRIPTOR = ("fstat", "write", "pwrite", "fsync", "ftruncate", "lseek", "close")
_NEEDED = ("open", "stat", "fstat", "close")
"""Functions without which nothing can be written at all, if each later call fails."""
_LONGEST_S = 60


class Fault:
    """Counts the calls below a folder, and fails one of them or all from that one on."""

    def __init__(self, folder: Path, number: int, code: int, lasts: str) -> None:
        self._folder = os.fspath(folder)
        self._number, self._code, self._lasts = number, code, lasts
        self._lock = threading.Lock()
        self.function = ""
        self.calls: list[str] = []

    def install(self) -> None:
        """Put itself before the functions."""
        for name in _BY_PATH:
            setattr(os, name, self._before(name, getattr(os, name), os.fspath))
        for name in _BY_DESCRIPTOR:
            setattr(os, name, self._before(name, getattr(os, name), self._path_of))
        fcntl.flock = self._before("flock", fcntl.flock, self._path_of)
        io.open = self._before("io.open", io.open, os.fspath)

    def _before(
        self, name: str, real: Callable[..., Any], path_of: Callable[[Any], str]
    ) -> Callable[..., Any]:
        def call(first: Any = ".", *more: Any, **by_name: Any) -> Any:
            if isinstance(first, int) and path_of is os.fspath:
                return real(first, *more, **by_name)
            path = os.fsdecode(path_of(first))
            if path.startswith(self._folder) or "dir_fd" in by_name:
                with self._lock:
                    self.calls.append(f"{name} {path[len(self._folder) :]}")
                    number = len(self.calls) - 1
                if self._is_faulty(name, number):
                    if name == "close":
                        real(first)
                    raise OSError(self._code, os.strerror(self._code), path)
            return real(first, *more, **by_name)

        return call

    def _is_faulty(self, name: str, number: int) -> bool:
        if number == self._number:
            self.function = name
        is_late = 0 <= self._number < number and self._lasts != "once"
        return number == self._number or (is_late and (self._lasts == "all" or name == self.function))

    @staticmethod
    def _path_of(descriptor: int, read: Callable[[str], str] = os.readlink) -> str:
        try:
            return read(f"/proc/self/fd/{descriptor}")
        except OSError:
            return ""


def train(run: Path | None, device: str) -> list[float]:
    """Three blocks of the same recorder, with a flush in each; the losses."""
    torch.manual_seed(0)
    place = "cuda" if device == "cuda" else "cpu"
    net = torch.nn.Linear(16, 16, device=place)
    losses = []
    recorder = None
    if run is not None:
        recorder = vramscope.record(run, device=device)
    for _ in range(3):
        if recorder is not None:
            recorder.__enter__()
        for _ in range(2):
            loss = net(torch.ones(4, 16, device=place)).square().mean()
            loss.backward()
            losses.append(loss.item())
            if recorder is not None:
                recorder.flush()
        if recorder is not None:
            recorder.__exit__(None, None, None)
    return losses


def _case(folder: Path, device: str, number: int, code: int, lasts: str) -> dict[str, Any]:
    run, told, said = folder / "run" / "x", folder / "stderr", folder / "said"
    child = os.fork()
    if not child:
        signal.alarm(_LONGEST_S)
        os.dup2(os.open(told, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        fault = Fault(folder / "run", number, code, lasts)
        fault.install()
        code = 1
        try:
            losses = train(run, device)
            atexit._run_exitfuncs()
            said.write_text(json.dumps({"losses": losses, "calls": fault.calls, "function": fault.function}))
            code = 7
        except BaseException:  # noqa: BLE001 -- the parent sees it in the status
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    answer = json.loads(said.read_text()) if said.exists() else {"losses": None, "calls": [], "function": ""}
    return {
        "status": os.waitstatus_to_exitcode(status),
        "stderr": told.read_text(),
        **answer,
        **seen(folder / "run"),
    }


def seen(root: Path) -> dict[str, Any]:
    """What a reader says of the recordings below a folder."""
    return {"runs": [_seen_of(run) for run in sorted(root.iterdir())] if root.exists() else []}


def _seen_of(run: Path) -> list[Any]:
    try:
        (each,) = load(run).recordings
    except Exception as error:  # noqa: BLE001 -- whatever a reader says
        return [run.name, "unreadable", type(error).__name__, str(error)[:200], []]
    notes = sorted({note.code for note in each.notes})
    return [run.name, each.outcome.value, len(each.trace), len(each.marks), notes]


def verdict(case: dict[str, Any], control: dict[str, Any], lasts: str) -> str:
    """What is wrong with a case, beside the one without a fault; empty if nothing is."""
    n_stops, runs = case["stderr"].count("stopped recording"), case["runs"]
    is_lost = lasts == "all" or (lasts != "once" and case["function"] in _NEEDED)
    wrong = {
        f"it ended with {case['status']}": case["status"] != control["status"],
        "other losses": case["losses"] != control["losses"],
        "a traceback": "Traceback" in case["stderr"],
        "told more than once": n_stops > 1,
        "nothing recorded, and not told": not runs and not n_stops,
        "more than one run": len(runs) > 1,
        # Where nothing can be written any more, stderr alone tells.
        "another end than the true one": bool(runs) and not (n_stops and is_lost) and _is_false(case),
        "less than all, and no word on stderr": bool(runs)
        and runs[0][1:4] != control["runs"][0][1:4]
        and not n_stops
        and "stalled" not in case["stderr"],
    }
    return ", ".join(what for what, is_so in wrong.items() if is_so)


def _is_false(case: dict[str, Any]) -> bool:
    """Whether a reader takes a program that went on for a dead one, or what stopped for the whole."""
    outcome, notes = case["runs"][0][1], case["runs"][0][4]
    is_for_whole = "stopped recording" in case["stderr"] and outcome == "finished" and not notes
    return outcome in ("running", "died") or is_for_whole


def cases(folder: Path, seed: int, device: str, calls: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """Each call in turn, with an error that the seed draws, once and for good."""
    import_everything()
    control = _case(_fresh(folder, "control"), device, -1, 0, "once")
    drawn = random.Random(seed)
    for number in calls if calls is not None else _each_once(control["calls"]):
        for lasts in LASTS:
            name = drawn.choice(ERRORS)
            own = _fresh(folder, f"{number}-{lasts}")
            case = _case(own, device, number, getattr(errno, name), lasts)
            call = control["calls"][number]
            wrong = verdict(case, control, lasts)
            yield {"number": number, "call": call, "error": name, "lasts": lasts, "wrong": wrong} | (
                {"stderr": case["stderr"], "runs": case["runs"]} if wrong else {}
            )


def _each_once(calls: list[str]) -> list[int]:
    """The first and the last call of each function with each file, and one between them."""
    places: dict[str, list[int]] = {}
    for number, call in enumerate(calls):
        places.setdefault(re.sub(r"-[0-9a-f]{8}\.tmp$", "", call), []).append(number)
    return sorted({each for of in places.values() for each in (of[0], of[len(of) // 2], of[-1])})


def _fresh(folder: Path, name: str) -> Path:
    own = folder / name.replace(" ", "_")
    (own / "run").mkdir(parents=True)
    return own


def main() -> None:
    """Run the cases that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--device", default="simulated")
    args = parser.parse_args()
    for case in cases(args.folder, args.seed, args.device, args.calls):
        print(json.dumps(case), flush=True)


if __name__ == "__main__":
    sys.exit(main())
