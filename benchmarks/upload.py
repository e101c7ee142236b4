"""Measure what recording to a store costs a step: CPU time of the training's thread, beside a directory.

    python benchmarks/upload.py [--out FILE] [--seconds S] [--pairs N]

The store is a server of moto in a process of its own: reachable, killed for 30 s in the middle, and refusing
every request. Recordings to a directory and to the store alternate. Afterwards each trace in the store is
compared with its spool, byte for byte.
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
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

CHILD = Path(__file__).with_name("_upload_child.py")
BUCKET = "bench"
AWAY_S = 30


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


def child(place: str, seconds: float, home: Path, port: int = 0) -> subprocess.Popen[str]:
    environment = os.environ | {
        "VRAMSCOPE_SPOOL": str(home / "spool"),
        "VRAMSCOPE_UPLOAD_WAIT_S": "5" if "refused" in place else "90",
    }
    environment |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"} if port else {}
    command = [sys.executable, str(CHILD), place, str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=900)
    if process.returncode:
        raise SystemExit(err)
    return json.loads(out.splitlines()[-1]) | {"said": err.strip().splitlines()[-1]}


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
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--pairs", type=int, default=4)
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
    local, there, ratios = [], [], []
    whole = 0
    for pair in range(args.pairs):
        local.append(result(child(str(home / f"local{pair}"), args.seconds, home)))
        found = result(child(f"s3://{BUCKET}/run{pair}", args.seconds, home, server.port))
        there.append(found)
        ratios.append(found["step_ms"] / local[-1]["step_ms"] - 1)
        whole += is_whole(f"{BUCKET}/run{pair}", found["spool"], server.port)
    killed = child(f"s3://{BUCKET}/killed", args.seconds + AWAY_S, home, server.port)
    time.sleep(args.seconds / 2)
    server.kill()
    time.sleep(AWAY_S)
    server.start()
    files(server.port).mkdir(BUCKET)
    after_kill = result(killed)
    kill_is_whole = is_whole(f"{BUCKET}/killed", after_kill["spool"], server.port)
    refused = result(child(f"s3://{BUCKET}/refused", args.seconds, home, refusing.port))
    later = subprocess.run(
        [sys.executable, "-m", "vramscope", "upload", refused["spool"]],
        env=os.environ | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}"},
        check=False,
        timeout=300,
    )
    later_is_whole = not later.returncode and is_whole(f"{BUCKET}/refused", refused["spool"], server.port)
    base = statistics.median(each["step_ms"] for each in local)

    def row(name: str, each: dict[str, Any], is_there: str) -> str:
        change = each["step_ms"] / base - 1
        return f"| {name} | {each['step_ms']:.2f} | {change:+.2%} | {each['n_events']:,} | {is_there} |"

    rows = [row("a directory", each, "") for each in local]
    rows += [row("S3", each, "yes") for each in there]
    rows += [row(f"S3, killed for {AWAY_S} s", after_kill, "yes" if kill_is_whole else "NO")]
    rows += [row("S3 that refuses", refused, "yes, by `upload`" if later_is_whole else "NO")]
    middle = statistics.median(ratios)
    setting = (
        f"`make bench-upload`: {args.pairs} pairs of {args.seconds:.0f} s, one thread, simulated device; the "
        "store is moto's S3 server on the same machine."
    )
    answer = (
        "CPU time of the training's thread per step, S3 beside a directory: median of the pairs "
        f"{middle:+.2%}, from {min(ratios):+.2%} to {max(ratios):+.2%}; whole in the store: "
        f"{whole} of {args.pairs}."
    )
    head = "| recorded to | CPU ms a step (median) | beside directories | events | whole in the store |"
    return [
        "# Recording to a store",
        "",
        setting,
        answer,
        "",
        head,
        "| --- | ---: | ---: | ---: | --- |",
        *rows,
    ]


if __name__ == "__main__":
    main()
