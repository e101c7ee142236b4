"""A real S3 server in a process of its own, and runs to put into it."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from vramscope.fleet import compared_run, known_summary
from vramscope.model.device import Device, Process
from vramscope.model.recording import Outcome
from vramscope.model.trace import Action, Trace
from vramscope.store.summaries import SUMMARY_FILE, write_summary
from vramscope.store.write.writer import Writer

MIB = 1 << 20
START_PATIENCE_S = 60


class S3Server:
    """An S3 server of moto on a port that stays its own; its objects live as long as its process."""

    def __init__(self, **environment):
        self.environment = os.environ | environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment
        )
        end = time.monotonic() + START_PATIENCE_S
        while not self.answers():
            assert self.process.poll() is None, "the S3 server ended"
            assert time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)

    def answers(self):
        try:
            with urlopen(f"{self.url}/moto-api/", timeout=5):
                return True
        except HTTPError:
            return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def s3_process():
    server = S3Server()
    yield server
    server.kill()


@pytest.fixture
def own_server():
    """A server that the test may kill."""
    server = S3Server()
    yield server
    server.kill()


@pytest.fixture
def refusing_server():
    """A server that knows nobody: it answers every request with 403."""
    server = S3Server(INITIAL_NO_AUTH_ACTION_COUNT="0")
    yield server
    server.kill()


@pytest.fixture
def s3_environment(monkeypatch, tmp_path):
    """Credentials that any server of moto takes, and a cache of this test's own."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("VRAMSCOPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def s3_of(s3_environment, monkeypatch):  # noqa: ARG001 -- credentials
    """The file system of a server; its endpoint is in the environment, where users put theirs."""
    import s3fs

    def of(server):
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        s3fs.S3FileSystem.clear_instance_cache()
        return s3fs.S3FileSystem()

    return of


@pytest.fixture
def s3(s3_process, s3_of):
    return s3_of(s3_process)


@pytest.fixture
def bucket(s3, request):
    name = f"bucket-{abs(hash(request.node.nodeid)) % 10**12}"
    s3.mkdir(name)
    return name


def write_rank(run: Path, rank: int, n_ranks: int, *, mib=100, n_steps=3) -> Path:
    process = Process(rank, n_ranks, socket.gethostname(), os.getpid())
    writer = Writer(
        run, source="cuda", process=process, devices=[Device(0, uuid=f"GPU-{rank}")], started_ns=10**18
    )
    writer.stacks([(0, "train", "/net/train.py", 7), (0, "forward", "/net/model.py", 3)])
    for step in range(n_steps):
        address, time_ns = 4096 + step * 2**30, 10**18 + step
        rows = {
            "action": [Action.ALLOC],
            "time_ns": [time_ns],
            "address": [address],
            "stack_id": [1 + step % 2],
        }
        writer.append(Trace.of(**rows, size=[mib * MIB], block_size=[mib * MIB]), 0)
    writer.close(Outcome.FINISHED)
    return writer.path


@pytest.fixture
def a_rank():
    """Writes one rank of a run: ``a_rank(run, rank, n_ranks, mib=…, n_steps=…)``."""
    return write_rank


@pytest.fixture
def job(tmp_path):
    """A run of eight ranks without summaries, of which one is odd."""
    run = tmp_path / "runs" / "job"
    for rank in range(8):
        write_rank(run, rank, 8, mib=120 if rank == 5 else 100)
    return run


@pytest.fixture
def with_summaries():
    """Writes those that a reader has made beside their traces, as recorders do: ``with_summaries(run)``."""

    def write(run):
        compared_run(run)
        for rank in run.iterdir():
            write_summary(rank / SUMMARY_FILE, known_summary(rank))

    return write


@pytest.fixture
def summarized_job(job, with_summaries):
    """The same run with the summaries of its ranks."""
    with_summaries(job)
    return job
