"""Attacks what reads, serves, exports and records, and writes down what held.

    make attack
    python benchmarks/attack.py --seed 0 --only served
    python benchmarks/attack.py --only programs signals --python PYTHON --device cuda

Each case is bounded in time and memory and stays on this machine. A case that does not hold is printed with
what makes it again; ``--seed`` is that of the damage, and ``SEEDS`` keeps earlier ones. Every program also
runs without recording: its losses and its exit status are what the recorded one must have.
"""

import argparse
import asyncio
import contextlib
import gzip
import http.client
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from damage import make_recordings, run_apart

from vramscope.cli import main as command_line

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_traces" / "transformer"
SEEDS = (5000, 7000)
"""Seeds of damage of earlier measurements; they run each time, beside a new one."""
_COPIES_PER_SEED = 100
_LONGEST_S = 60
_MOST_BYTES = 6 << 30


class Programs(NamedTuple):
    """What runs the programs that are recorded, and where their tensors are."""

    python: str = sys.executable
    device: str = "simulated"

    def source(self, text: str) -> str:
        """Return the text of a program with this device in it."""
        place = "cuda" if self.device == "cuda" else "cpu"
        return f"DEVICE, PLACE = {self.device!r}, {place!r}\n{text}"


class Case(NamedTuple):
    """One thing that was tried."""

    area: str
    name: str
    held: bool
    detail: str = ""


# ---------------------------------------------------------------- traces and files of strangers
def damaged(home: Path, seed: int, _ran: Programs) -> Iterator[Case]:
    """Recordings with bytes changed, cut, swapped: told or refused, never shown as whole."""
    recordings = make_recordings(home / "damaged")["with checksums"]
    for each in (*SEEDS, seed):
        for number, (found, what) in enumerate(run_apart(recordings, each, _COPIES_PER_SEED)):
            held = found in ("same", "refused", "noted")
            yield Case("damaged traces", f"seed {each}, copy {number}", held, f"{found}: {what}")


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to /etc/passwd": lambda path: path.symlink_to("/etc/passwd"),
    "folder": Path.mkdir,
    "hole of 3 GiB": _hole,
    "brackets": lambda path: path.write_text("[" * 200_000),
    "objects": lambda path: path.write_text('{"a":' * 100_000),
    "NaN": lambda path: path.write_text('{"started_ns": NaN, "trace": Infinity, "process": -Infinity}'),
    "long number": lambda path: path.write_text('{"format": %s}' % ("9" * 5000)),
    "list": lambda path: path.write_text("[]"),
    "nothing": lambda path: path.write_bytes(b""),
    "no UTF-8": lambda path: path.write_bytes(b'{"\xff\xfe": 1}'),
    "UTF-16": lambda path: path.write_text('{"format": "vramscope"}', encoding="utf-16"),
}
_BESIDE = (
    "manifest.json",
    "summary.json",
    "sources.json",
    "prediction.json",
    "events-0.arrows",
    "labels-0.arrows",
)


def hostile_files(home: Path, _seed: int, _ran: Programs) -> Iterator[Case]:
    """Each file of a recording replaced by something else, and asked by commands."""
    for name in _BESIDE:
        for what, make in ODD_FILES.items():
            run = home / f"{name}-{what}".replace("/", "_")
            shutil.copytree(SAMPLE, run)
            (run / "rank0" / name).unlink(missing_ok=True)
            make(run / "rank0" / name)
            for command in ("report", "ranks", "info"):
                yield _asked("hostile files", f"{command} with {name} as {what}", [command, str(run)])
            shutil.rmtree(run)


def bombs(home: Path, _seed: int, _ran: Programs) -> Iterator[Case]:
    """Small files that unpack, nest or claim to be large, and pickles that would execute something."""
    victim = home / "executed"
    made = {
        "evil.pickle": b"cposix\nsystem\n(S'touch %s'\ntR." % os.fsencode(victim),
        "marks.pickle": b"\x80\x04" + b"(" * 2_000_000 + b".",
        "claims.pickle": b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"abc.",
        "memo.pickle": b"\x80\x04Nr\xf0\xff\xff\xff.",
        "frame.pickle": b"\x80\x04\x95" + (1 << 40).to_bytes(8, "little") + b"N.",
        "events.json": b'{"traceEvents":['
        + b'{"ph":"i","name":"[memory]","args":{"Addr":1e999}},' * 99
        + b"{}]}",
        "deep.json": b'{"traceEvents":' + b"[" * 500_000,
        "empty.pickle": pickle.dumps({"segments": [], "device_traces": [[]]}),
    }
    for name, data in made.items():
        (home / name).write_bytes(data)
    with gzip.open(home / "zeros.pickle.gz", "wb") as out:
        for _ in range(600):
            out.write(bytes(1 << 20))
    with zipfile.ZipFile(home / "zeros.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(200 << 20))
    os.mkfifo(home / "pipe.pickle")
    (home / "device.pickle").symlink_to("/dev/zero")
    for name in [*made, "zeros.pickle.gz", "zeros.zip", "pipe.pickle", "device.pickle"]:
        for command in ("report", "fit", "info"):
            case = _asked("bombs", f"{command} {name}", [command, str(home / name)])
            yield case._replace(held=case.held and not victim.exists())


def odd_arguments(_home: Path, _seed: int, _ran: Programs) -> Iterator[Case]:
    """Numbers and sizes that no option means."""
    for text in (
        "nan",
        "inf",
        "-1",
        "9" * 400,
        "9" * 5000,
        "9" * 5000 + "GiB",
        "1e999",
        "",
        "\u0661GiB",
        "0x10",
        "-inf",
    ):
        for command in (
            ["fit", "--capacity"],
            ["check", "--max-peak"],
            ["check", "--max-fragmentation"],
            ["report", "--rank"],
            ["report", "--top"],
            ["leaks", "--min-bytes-per-step"],
        ):
            words = [command[0], str(SAMPLE), f"{command[1]}={text}"]
            yield _asked("odd arguments", f"{command[0]} {command[1]}={text[:12]}", words)


def _asked(area: str, name: str, words: list[str]) -> Case:
    """A command in a process of its own, with bounds: it ends by itself, with a sentence and no traceback."""
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if not child:
            _bounded_child(words, told.fileno())
        _, status = os.waitpid(child, 0)
        told.seek(0)
        text = told.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    held = code in (0, 1, 2, 3) and "Traceback" not in text
    return Case(area, name, held, f"exit {code}: {text[-200:].strip()}")


def _bounded_child(words: list[str], told: int) -> None:
    signal.alarm(_LONGEST_S)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    code = 99
    try:
        os.dup2(told, 2)
        with contextlib.redirect_stdout(io.StringIO()):
            code = command_line(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the case did not hold
        os.write(2, f"Traceback: {type(error).__name__}: {error}".encode()[:500])
    os._exit(code)


# ---------------------------------------------------------------- the servers
_HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "evil@127.0.0.1",
    "127.0.0.1:99999999",
    "127.0.0.1:-1",
    "[::1",
    "localhost.",
    "10.0.0.1",
    "2130706433",
    "127.0.0.1, evil.example",
    "",
    "\xff",
)
_ROUTES = (
    "/",
    "/overview",
    "/_dash-layout",
    "/_dash-dependencies",
    "/_alive",
    "/api/timeline",
    "/assets/style.css",
)
_ORIGINS = (
    "http://[",
    "http://[::1",
    "http://evil.example",
    "null",
    "file://",
    "\xff",
    "http://127.0.0.1@evil.example",
)
_AWAY = (
    "/%09/evil.example",
    "/%5cevil.example",
    "//evil.example",
    "/%0d%0a/evil.example",
    "/x//evil.example",
    "/%2f%2fevil.example",
    "/.//evil.example",
    "/%20//evil.example",
)
_PATHS = (
    "/assets/../../etc/passwd",
    "/assets/%2e%2e/%2e%2e/etc/passwd",
    "/_dash-component-suites/os/x",
    "/%00",
    "/" + "a" * 20_000,
    "/overview?run=../../etc",
    "/overview?run=x%00",
    "*",
)


def served(home: Path, _seed: int, _ran: Programs) -> Iterator[Case]:
    """Raw requests: nothing without the token, nothing under another name, no error of the server's own."""
    port, metrics = _free_port(), _free_port()
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    command = [
        sys.executable,
        "-m",
        "vramscope",
        "serve",
        str(SAMPLE),
        f"--port={port}",
        f"--metrics={metrics}",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            shown = ""
            while "metrics at" not in shown and (line := server.stdout.readline()):  # type: ignore[union-attr]
                shown += line
            token = shown.partition("token=")[2].split()[0]
            yield from _requests(port, metrics, token)
        finally:
            server.terminate()
            told = server.communicate(timeout=60)[1]
    yield Case("served", "its log has no traceback", "Traceback" not in told, told[-300:])


def _requests(port: int, metrics: int, token: str) -> Iterator[Case]:
    own, cookie = f"127.0.0.1:{port}", {"Cookie": f"vramscope-{port}={token}"}

    def case(
        name: str,
        allowed: tuple[int, ...],
        path: str = "/",
        to: int = port,
        method: str = "GET",
        **headers: str,
    ) -> Case:
        status, place = _answer(
            to, method, path, {"Host": own, **{k.replace("_", "-"): v for k, v in headers.items()}}
        )
        is_away = place != "" and not (place.startswith("/") and place[1:2] not in ("/", "\\", "\t"))
        return Case("served", name, status in allowed and not is_away, f"{status} {place}")

    for route in _ROUTES:
        yield case(f"{route} without the token", (401, 404), route)
        for host in _HOSTS:
            yield case(f"{route} as {host!r}", (400, 403), route, **{**cookie, "Host": host})
        for origin in _ORIGINS:
            yield case(f"{route} from {origin!r}", (400, 403), route, **{**cookie, "Origin": origin})
    for host in _HOSTS:
        yield case(f"/metrics as {host!r}", (400, 403), "/metrics", metrics, Host=host)
    for origin in _ORIGINS:
        yield case(
            f"/metrics from {origin!r}", (400, 403), "/metrics", metrics, Host="127.0.0.1", Origin=origin
        )
    yield from _odd_requests(case, metrics, token, cookie)


def _odd_requests(
    case: Callable[..., Case], metrics: int, token: str, cookie: dict[str, str]
) -> Iterator[Case]:
    yield case("/metrics under its own name", (200,), "/metrics", metrics, Host=f"127.0.0.1:{metrics}")
    for path in _AWAY:
        yield case(f"the token with {path}", (302,), f"{path}?token={token}")
    for path in _PATHS:
        yield case(f"the path {path[:40]}", (200, 400, 404, 405, 414, 431), path, **cookie)
    for method in ("PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "BREW", "POST"):
        yield case(f"{method} without the token", (400, 401, 404, 405, 501), method=method)
    for offered in ("", "x", "%00", "%ff%fe", token[:-1], token + "x"):
        yield case(f"a wrong token {offered[:4]!r}", (401,), f"/?token={offered}")


def _answer(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONGEST_S)
    try:
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        line.connect()
        line.sock.sendall("\r\n".join((*head, "Connection: close", "", "")).encode("latin1"))
        answer = http.client.HTTPResponse(line.sock, method=method)
        answer.begin()
        return answer.status, answer.headers.get("Location", "")
    except (OSError, http.client.HTTPException) as error:
        return 400 if isinstance(error, ConnectionError | http.client.BadStatusLine) else 0, ""
    finally:
        line.close()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


# ---------------------------------------------------------------- agents
def agents(home: Path, _seed: int, _ran: Programs) -> Iterator[Case]:
    """Arguments of tools: what lies outside is not opened, and every refusal has its text."""
    from vramscope.commands._mcp_tools import Tools

    root, outside = (home / "served").resolve(), (home / "outside").resolve()
    root.mkdir()
    shutil.copytree(SAMPLE, root / "good")
    shutil.copytree(SAMPLE, outside / "secret")
    (root / "direct").symlink_to(outside / "secret")
    (root / "linked").mkdir()
    (root / "linked" / "rank0").symlink_to(outside / "secret" / "rank0")
    (root / "files" / "rank0").mkdir(parents=True)
    for file in (outside / "secret" / "rank0").iterdir():
        (root / "files" / "rank0" / file.name).symlink_to(file)
    (root / "twice").mkdir()
    (root / "twice" / "rank0").symlink_to(root / "files" / "rank0")
    tools = Tools(root)
    for path in (
        "../outside/secret",
        str(outside / "secret"),
        "direct",
        "linked",
        "files",
        "twice",
        "..",
        "/",
        "\0",
        "good/../../outside/secret",
        "a\0b",
        "s3://x/y",
        "file:///etc/passwd",
        "http://127.0.0.1:1/",
        "~",
        "-h",
        "--debug",
        "x" * 100_000,
        "\udcff",
        "/proc/self/environ",
        "/dev/zero",
        "good\n--json",
    ):
        yield _refused(f"peak {path[:30]!r}", lambda path=path: tools.peak(path))
        yield _refused(f"compare {path[:30]!r}", lambda path=path: tools.compare("good", path))
    for size in ("-5", "nan", "1e400GiB", "; touch x", "24GiB --json", "\0", "--rerun=touch x", "9" * 5000):
        yield _refused(f"fit {size[:20]!r}", lambda size=size: tools.fit("good", size))
    for arguments in (["\0"], ["a\0b"]):
        yield _refused(f"predict {arguments}", lambda arguments=arguments: tools.predict("good", arguments))


def _refused(name: str, ask: Callable[[], object]) -> Case:
    try:
        answer = asyncio.run(ask())  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 -- which kind it is decides
        held = type(error).__name__ == "ToolError" and bool(str(error)) and "Traceback" not in str(error)
        return Case("agents", name, held, f"{type(error).__name__}: {str(error)[:150]}")
    return Case("agents", name, held=False, detail=f"answered: {str(answer)[:100]}")


# ---------------------------------------------------------------- programs, beside themselves without us
_TRAINING = """
import contextlib, multiprocessing, os, resource, signal, sys, threading, time, torch, vramscope
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(64, 64, device=PLACE); opt = torch.optim.SGD(net.parameters(), lr=0.1)
batch = torch.ones(8, 64, device=PLACE)
def steps(n=4):
    for _ in range(n):
        loss = net(batch).square().mean(); loss.backward(); opt.step(); opt.zero_grad()
        print(loss.item(), flush=True)
def clock(by, real=time.time_ns):
    time.time_ns = lambda: real() + by
def small(): return torch.ones(4, device=PLACE)
def stack(n):
    exec(compile(f'def f{n}(): return small()\\nf{n}()', f's{n}.py', 'exec'), {"small": small})
def turns(bits, n=17):
    return (left if bits & 1 else right)(bits >> 1, n - 1) if n else small()
left = lambda bits, n: turns(bits, n)
right = lambda bits, n: turns(bits, n)
def exhaust():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        while True: held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError: pass
held = []
def trained(_):
    net.zero_grad()  # a worker may get one part or all of them
    net(batch).sum().backward()
    return float(net.weight.grad.sum())
def block():
    return vramscope.record(RUN, device=DEVICE, quiet=True) if RUN else contextlib.nullcontext()
def half_way():
    with block(): steps(1); yield
def waits(has_begun):
    with block(): steps(1); has_begun.set(); threading.Event().wait()
def leave():
    gone = os.path.join(os.environ['HOME_OF_CASE'], 'gone')
    os.mkdir(gone); os.chdir(gone); os.rmdir(gone)
"""
PROGRAMS = {
    "ends": "steps()",
    "raises": "steps(); raise ValueError('x')",
    "exits with 7": "steps(); sys.exit(7)",
    "exits with a text": "steps(); sys.exit('no')",
    "leaves by os._exit": "steps(); os._exit(5)",
    "is terminated": "steps(); os.kill(os.getpid(), signal.SIGTERM)",
    "is killed": "steps(); os.kill(os.getpid(), signal.SIGKILL)",
    "aborts": "steps(); os.abort()",
    "interrupts itself": "steps(); raise KeyboardInterrupt",
    "trains on a thread": "t = threading.Thread(target=steps); t.start(); t.join()",
    "forks": "steps(1); p = os.fork()\nif not p: steps(1); os._exit(3)\nprint(os.waitpid(p, 0)[1]); steps(1)",
    "closes stderr": "os.close(2); steps()",
    "sets the clock back": "steps(2); clock(-(10**15)); steps(2)",
    "sets the clock forward": "steps(2); clock(10**17); steps(2)",
    "has many stacks": "for n in range(3000): stack(n)\nsteps()",
    "has 100,000 stacks": "for bits in range(100_000): turns(bits)\nsteps()",
    "compiles": "net = torch.compile(net, backend='aot_eager'); steps()",
    "has no descriptors": "steps(2); exhaust(); steps(2)",
    "has workers that are spawned": "steps(2)\n"
    "with multiprocessing.get_context('spawn').Pool(2) as pool: print(pool.map(trained, range(4)))\nsteps(2)",
    "has workers that are forked": "steps(2)\n"
    "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(trained, range(4)))\nsteps(2)",
    "follows its memory in Python": "import tracemalloc; tracemalloc.start(20); steps()",
    "loses its directory": "leave(); steps()",
    "leaves a generator open": "kept = half_way(); next(kept)",
    "ends while a thread is in a block": "now = threading.Event()\n"
    "threading.Thread(target=waits, args=(now,), daemon=True).start(); now.wait(); steps(1)",
    "may write no file": "steps(2)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1])); steps(2)",
}


def programs(home: Path, _seed: int, ran: Programs) -> Iterator[Case]:
    """Programs that end oddly: with the losses and the status that they have without being recorded."""
    for number, (name, body) in enumerate(PROGRAMS.items()):
        inside = body.replace("\n", "\n    ")
        main = f"{_TRAINING}\nif __name__ == '__main__':\n  with block():\n    {inside}\n"
        run = home / f"run{number}"
        alone = _ended(home, number, f"RUN = ''{main}", ran)
        recorded = _ended(home, number + 1000, f"RUN = {str(run)!r}{main}", ran)
        held = alone == recorded and alone[0] != "hang"
        yield Case("programs", name, held, f"alone {alone}, recorded {recorded}"[:400])
        if run.exists() and name != "loses its directory":
            yield _asked("programs", f"the recording of one that {name}", ["report", str(run)])


def _ended(home: Path, number: int, source: str, ran: Programs) -> tuple[object, str]:
    file = home / f"program{number}.py"
    file.write_text(ran.source(source))
    own = home / f"case{number}"
    own.mkdir()
    try:
        done = subprocess.run(
            [ran.python, str(file)],
            capture_output=True,
            timeout=2 * _LONGEST_S,
            check=False,
            text=True,
            env={**os.environ, "HOME_OF_CASE": str(own)},
        )
    except subprocess.TimeoutExpired:
        return "hang", ""
    return done.returncode, done.stdout


_ENDLESS = """
import sys, torch, vramscope, contextlib
net = torch.nn.Linear(64, 64, device=PLACE)
block = contextlib.nullcontext()
if sys.argv[1] != "alone":
    block = vramscope.record(sys.argv[1], device=DEVICE, quiet=True)
print("begins", flush=True)
while True:
    with block:
        for _ in range(int(sys.argv[2])):
            net(torch.ones(8, 64, device=PLACE)).square().mean().backward()
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_MOMENTS = 4
"""How many moments each signal comes at, for blocks of one step and of many."""


def signals(home: Path, seed: int, ran: Programs) -> Iterator[Case]:
    """A signal at a moment that the seed draws, from the first import's end on: it ends as it does alone."""
    script, drawn = home / "endless.py", random.Random(seed)
    script.write_text(ran.source(_ENDLESS))
    for number in _SIGNALS:
        alone = _signalled(ran.python, script, ("alone", 1), number, 0.5)
        for n_steps in (1, 1000):
            for moment in range(_MOMENTS):
                run = home / f"{number.name}-{n_steps}-{moment}"
                # Half of them while the first block begins, which takes some tenths of a second.
                after_s = drawn.uniform(0, 0.5 if moment % 2 else 3)
                name = f"{number.name} after {after_s:.3f} s, blocks of {n_steps}"
                status = _signalled(ran.python, script, (str(run), n_steps), number, after_s)
                held = status == alone != "hang"
                yield Case("signals", name, held, f"alone {alone}, recorded {status}")
                if run.exists() and any(run.iterdir()):
                    yield _asked("signals", f"the recording, {name}", ["report", str(run)])


def _signalled(python: str, script: Path, words: tuple[str, int], number: int, after_s: float) -> int | str:
    command = [python, str(script), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        child.stdout.readline()  # type: ignore[union-attr]
        time.sleep(after_s)
        child.send_signal(number)
        try:
            return child.wait(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return "hang"


def two_at_once(home: Path, _seed: int, ran: Programs) -> Iterator[Case]:
    """Processes that start at the same moment and are given the same directory: each has one of its own."""
    script = home / "two.py"
    waits = "print('ready', flush=True)\nsys.stdin.readline()"
    recorded = "with vramscope.record(sys.argv[1], device=DEVICE): steps()"
    script.write_text(ran.source(f"{_TRAINING}\n{waits}\n{recorded}"))
    for n_processes in (2, 5):
        run = home / f"{len(list(home.iterdir()))}" / "run"
        command = [ran.python, str(script), str(run)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children = [subprocess.Popen(command, text=True, **streams) for _ in range(n_processes)]
        for child in children:
            child.stdout.readline()  # type: ignore[union-attr]
        for child in children:
            child.stdin.write("go\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
        told = [child.communicate(timeout=2 * _LONGEST_S)[1] for child in children]
        runs = sorted(run.parent.iterdir())
        moved = sum("holds another run; recording to" in each for each in told)
        held = (len(runs), moved) == (n_processes, n_processes - 1)
        yield Case("two at once", f"{n_processes} processes", held, f"{[each.name for each in runs]} {told}")
        for each in runs:
            yield _asked("two at once", f"{each.name} of {n_processes}", ["report", str(each)])


def faults(home: Path, seed: int, ran: Programs) -> Iterator[Case]:
    """Each system call of a recording fails in turn: trained as without, told as it is."""
    command = [
        ran.python,
        str(Path(__file__).with_name("_attack_faults.py")),
        str(home),
        f"--seed={seed}",
        f"--device={ran.device}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    for case in map(json.loads, done.stdout.splitlines()):
        name = f"{case['error']} {case['lasts']} at call {case['number']}, {case['call']}"
        yield Case("faults of the disk", name, not case["wrong"], str(case)[-400:])
    yield Case("faults of the disk", "all were tried", done.returncode == 0, done.stderr[-400:])


# ---------------------------------------------------------------- the parts that the tests have
_TESTED = (
    "tests/unit/export/test_canaries.py",
    "tests/unit/export/test_redaction.py",
    "tests/unit/commands/test_attach.py",
    "tests/unit/commands/test_document.py",
    "tests/unit/store/test_side_files.py",
    "tests/unit/dashboard/test_security.py",
    "tests/unit/dashboard/test_run_ids.py",
    "tests/unit/store/test_torn_ends.py",
    "tests/unit/store/test_faults.py",
)


def tested(home: Path, _seed: int, ran: Programs) -> Iterator[Case]:
    """Redaction, side files, access, attaching, ids, terminals: the quick parts, which run in the suite."""
    command = [
        ran.python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={home / 'tests.xml'}",
        *_TESTED,
    ]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=900, check=False)
    for each in ET.parse(home / "tests.xml").iter("testcase"):
        if each.find("skipped") is None:
            failed = each.find("failure") if each.find("error") is None else each.find("error")
            detail = "" if failed is None else str(failed.get("message"))[:200]
            yield Case("redaction and access", f"{each.get('name')}", failed is None, detail)


AREAS = {
    each.__name__: each
    for each in (
        hostile_files,
        bombs,
        odd_arguments,
        agents,
        served,
        programs,
        signals,
        two_at_once,
        faults,
        tested,
        damaged,
    )
}


def main() -> int:
    """Run all areas, print what did not hold, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the damage, beside those that are kept")
    parser.add_argument("--only", choices=AREAS, nargs="*", default=list(AREAS))
    parser.add_argument("--python", default=sys.executable, help="what runs the programs that are recorded")
    parser.add_argument(
        "--device", choices=("simulated", "cuda"), default="simulated", help="of these programs"
    )
    parser.add_argument("--out", type=Path, help="where to write the table")
    args = parser.parse_args()
    # What a shell runs in the background has no SIGINT, below nohup no SIGHUP, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    found: list[Case] = []
    for area in args.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="vramscope-attack-") as folder:
            for case in AREAS[area](Path(folder), args.seed, Programs(args.python, args.device)):
                found.append(case)
                if not case.held:
                    print(f"NOT HELD  {case.area}: {case.name}: {case.detail}", flush=True)
        print(f"{area}: {time.monotonic() - began:.0f} s", flush=True)
    text = table(found, args.seed)
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    return 1 if any(not case.held for case in found) else 0


def table(found: list[Case], seed: int) -> str:
    """The table of what was tried and what held."""
    rows = []
    for area in dict.fromkeys(case.area for case in found):
        held = [case.held for case in found if case.area == area]
        rows.append(f"| {area} | {len(held)} | {sum(held)} | {len(held) - sum(held)} |")
    total = [case.held for case in found]
    lost = [f"- {case.area}: {case.name}" for case in found if not case.held]
    seeds = ", ".join(map(str, (*SEEDS, seed)))
    head = f"# Attacks\n\nWritten by `make attack`; the seeds of the damage are {seeds}.\n"
    columns = "\n| area | tried | held | not |\n| --- | ---: | ---: | ---: |\n"
    end = f"\n| all | {len(total)} | {sum(total)} | {len(total) - sum(total)} |\n"
    return (
        head + columns + "\n".join(rows) + end + ("\nNot held:\n\n" + "\n".join(lost) + "\n" if lost else "")
    )


if __name__ == "__main__":
    sys.exit(main())
