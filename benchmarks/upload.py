"""Measure what recording to a store costs a step: CPU time of the training's thread, beside a directory.

    python benchmarks/upload.py [--out FILE] [--seconds S] [--processes N]

The store is a server of moto in a process of its own: reachable, killed for 30 s in the middle, and refusing
every request. In each training, blocks of steps are recorded in turn to a directory, to another directory and
to the store, and compared within their round; the two directories show what the method resolves. Afterwards
each trace in the store is compared with its spool, byte for byte.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np

CHILD = Path(__file__).with_name("_upload_child.py")
PAIRS_CHILD = Path(__file__).with_name("_upload_pairs_child.py")
N_RESAMPLED = 2000
DIRECTORIES = ("directory", "another directory")
BUCKET = "bench"
AWAY_S, LONGEST_AWAY_RUN_S = 30, 45


class Server:
    """The server of moto; it forgets its objects when it is killed."""

    def __init__(self, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = os.environ | environment
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=self.environment)
        for _ in range(600):
            if self.answers():
                return
            time.sleep(0.1)
        raise SystemExit("the server did not start")

    def answers(self) -> bool:
        try:
            urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5).close()
        except HTTPError:
            return True
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=60)


def files(port: int) -> Any:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", use_listings_cache=False)


def child(
    place: str, seconds: float, home: Path, port: int = 0, beside: Path | None = None
) -> subprocess.Popen[str]:
    environment = os.environ | {
        "VRAMSCOPE_SPOOL": str(home / "spool"),
        "VRAMSCOPE_UPLOAD_WAIT_S": "5" if "refused" in place else "90",
    }
    environment |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"} if port else {}
    command = [sys.executable, str(CHILD), place, str(seconds)]
    if beside is not None:
        command = [sys.executable, str(PAIRS_CHILD), str(beside), place, str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=900)
    if process.returncode:
        raise SystemExit(err)
    return dict(json.loads(out.splitlines()[-1]))


class UploaderTime:
    """The CPU time of the processes that upload, looked at until the training ends."""

    def __init__(self, training: subprocess.Popen[str]) -> None:
        self._training = training
        self.cpu_s = 0.0

    def watch(self) -> None:
        """Look once a second; the last second of an uploader is missing."""
        of: dict[str, float] = {}
        while self._training.poll() is None:
            for stat in Path("/proc").glob("[0-9]*/stat"):
                try:
                    words = stat.read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(words[1]) == self._training.pid:
                    of[stat.parent.name] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(1)
        self.cpu_s = sum(of.values())


def change_of(
    rounds: list[dict[str, list[float]]], name: str, others: tuple[str, ...], which: int
) -> tuple[float, float, float]:
    """The change of *name* beside the mean of *others* in its round, and its interval of 95 %.

    Rounds that something else disturbed are cut off on both sides alike; the interval is by resampling.
    """
    change = np.array([each[name][which] / np.mean([each[n][which] for n in others]) - 1 for each in rounds])
    random = np.random.default_rng(0)
    resampled = [middle_of(random.choice(change, len(change))) for _ in range(N_RESAMPLED)]
    low, high = np.quantile(resampled, [0.025, 0.975]).tolist()
    return middle_of(change), low, high


def middle_of(values: np.ndarray) -> float:
    """The mean without the largest and the smallest fifth: half as noisy as the median here."""
    cut = len(values) // 5
    return float(np.sort(values)[cut : len(values) - cut].mean())


def is_whole(run: str, spool: str, port: int) -> bool:
    """Whether every file of the spool is in the store, byte for byte, and the trace reads without a gap."""
    store = files(port)
    rank = Path(spool) / "rank0"
    local = {
        f"{run}/rank0/{path.relative_to(rank)}": path.read_bytes()
        for path in rank.rglob("*")
        if path.is_file() and path.name != ".upload.json"
    }
    return local == {name: store.cat_file(name) for name in store.find(run)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--processes", type=int, default=4)
    args = parser.parse_args()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    home = Path(tempfile.mkdtemp())
    server, refusing = Server(), Server(INITIAL_NO_AUTH_ACTION_COUNT="0")
    try:
        lines = measured(args, home, server, refusing)
    finally:
        server.kill()
        refusing.kill()
        shutil.rmtree(home, ignore_errors=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")


def measured(args: argparse.Namespace, home: Path, server: Server, refusing: Server) -> list[str]:
    files(server.port).mkdir(BUCKET)
    rounds: list[dict[str, list[float]]] = []
    whole, upload_s, n_events, n_steps = 0, 0.0, 0, 1
    for number in range(args.processes):
        place = f"s3://{BUCKET}/run{number}"
        training = child(place, args.seconds, home, server.port, beside=home / f"local{number}")
        uploader = UploaderTime(training)
        watching = Thread(target=uploader.watch, daemon=True)
        watching.start()
        found = result(training)
        watching.join()
        rounds += found["rounds"]
        upload_s += uploader.cpu_s
        n_events += found["n_events"]
        n_steps = found["n_steps"]
        whole += is_whole(f"{BUCKET}/run{number}", found["spool"], server.port)
        print(*figures(rounds, n_steps), sep="\n", flush=True)
    seconds = min(args.seconds, LONGEST_AWAY_RUN_S)
    killed = child(f"s3://{BUCKET}/killed", seconds + AWAY_S, home, server.port)
    time.sleep(seconds / 2)
    server.kill()
    time.sleep(AWAY_S)
    server.start()
    files(server.port).mkdir(BUCKET)
    after_kill = result(killed)
    kill_is_whole = is_whole(f"{BUCKET}/killed", after_kill["spool"], server.port)
    refused = result(child(f"s3://{BUCKET}/refused", seconds, home, refusing.port))
    later = subprocess.run(
        [sys.executable, "-m", "vramscope", "upload", refused["spool"]],
        env=os.environ | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}"},
        check=False,
        timeout=300,
    )
    later_is_whole = not later.returncode and is_whole(f"{BUCKET}/refused", refused["spool"], server.port)
    rows = [
        f"| S3, killed for {AWAY_S} s | {after_kill['n_events']:,} | {'yes' if kill_is_whole else 'NO'} |",
        f"| S3 that refuses | {refused['n_events']:,} | {'yes, by `upload`' if later_is_whole else 'NO'} |",
    ]
    setting = (
        f"`make bench-upload`: {args.processes} trainings of {args.seconds:.0f} s, one thread, simulated "
        f"device; the store is moto's S3 server on\nthe same machine; load {os.getloadavg()[0]:.1f} at end. "
        f"{len(rounds):,} rounds of three blocks of {n_steps} steps, in random order, each of one process."
    )
    per_step_ms = 1000 * upload_s / (len(rounds) * n_steps)
    return [
        "# Recording to a store",
        "",
        setting,
        "",
        *figures(rounds, n_steps),
        "",
        f"The processes that upload took {per_step_ms:.2f} ms of another core for each uploaded step.",
        "",
        "| recorded to | events | whole in the store |",
        "| --- | ---: | --- |",
        f"| S3 | {n_events:,} | {whole} of {args.processes} |",
        *rows,
    ]


def figures(rounds: list[dict[str, list[float]]], n_steps: int) -> list[str]:
    """The table of changes beside a directory."""
    rows = ["| CPU time of | ms a step | store beside the directories | one directory beside the other |",
            "| --- | ---: | --- | --- |"]  # fmt: skip
    for which, of in enumerate(("the training's thread, in the steps", "the process, with begin and end")):
        ms = 1000 * statistics.median(each[DIRECTORIES[0]][which] for each in rounds) / n_steps
        compared = ("store", DIRECTORIES), (DIRECTORIES[1], DIRECTORIES[:1])
        found = [change_of(rounds, name, others, which) for name, others in compared]
        words = [f"{middle:+.2%}, {low:+.2%} to {high:+.2%}" for middle, low, high in found]
        rows.append(f"| {of} | {ms:.3f} | {words[0]} | {words[1]} |")
    return rows


if __name__ == "__main__":
    main()
