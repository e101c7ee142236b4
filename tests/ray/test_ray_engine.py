"""Ray gives the same answer as this process, also when a node is lost in the middle (``make test-ray``)."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")

from ray.cluster_utils import Cluster  # noqa: E402

from vramscope.commands._comparison_page import comparison_as_json  # noqa: E402
from vramscope.fleet import compared_run  # noqa: E402
from vramscope.fleet.ray_engine import mapped_by_ray  # noqa: E402
from vramscope.model.device import Device, Process  # noqa: E402
from vramscope.model.recording import Outcome  # noqa: E402
from vramscope.model.trace import Action, Trace  # noqa: E402
from vramscope.store.write.writer import Writer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
MIB = 1 << 20
N_RANKS = 24


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("job") / "run"
    for rank in range(N_RANKS):
        process = Process(rank, N_RANKS, socket.gethostname(), os.getpid())
        writer = Writer(
            run, source="cuda", process=process, devices=[Device(0, uuid=f"GPU-{rank}")], started_ns=10**18
        )
        writer.stacks([(0, "train", "/net/train.py", 7)])
        size = (100 + 20 * (rank == 11)) * MIB
        rows = {"action": [Action.ALLOC], "time_ns": [10**18], "address": [4096], "stack_id": [1]}
        writer.append(Trace.of(**rows, size=[size], block_size=[size]), 0)
        writer.close(Outcome.FINISHED)
    return run


@pytest.fixture(scope="module")
def cluster():
    paths = os.environ.get("PYTHONPATH", "")
    os.environ["VRAMSCOPE_CACHE"] = "off"  # each answer is made anew
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), paths])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * MIB})
    made.lost = made.add_node(num_cpus=1, object_store_memory=80 * MIB)
    made.add_node(num_cpus=1, object_store_memory=80 * MIB)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def answer(run, engine) -> str:
    return json.dumps(comparison_as_json(compared_run(run, engine)))


def test_three_nodes_give_the_same_bytes_as_this_process(job, cluster):
    assert len(cluster.list_all_nodes()) == 3
    truth = answer(job, map)

    assert json.loads(truth)["outliers"][0]["rank"] == 11
    assert answer(job, mapped_by_ray) == truth


@pytest.fixture
def s3_url(job, monkeypatch, tmp_path):
    """The job in a real S3 server, without summaries; the workers of the cluster get its address too."""
    import s3fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "VRAMSCOPE_CACHE": str(tmp_path / "cache"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not is_open(port):
            assert server.poll() is None, "the S3 server ended"
            assert time.monotonic() < end, "the S3 server did not start"
            time.sleep(0.1)
        files = s3fs.S3FileSystem()
        files.mkdir("jobs")
        for path in job.rglob("*"):
            if path.is_file():
                files.pipe_file(f"jobs/run/{path.relative_to(job)}", path.read_bytes())
        yield "s3://jobs/run", values
    finally:
        server.kill()
        server.wait(timeout=30)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def with_environment(values, work, inputs):
    """Map over Ray with variables set in each task: the nodes of this cluster began before the server."""

    def within(given):
        os.environ.update(values)
        return work(given)

    return mapped_by_ray(within, inputs)


def test_a_run_in_s3_is_read_by_the_workers_with_the_same_answer(job, s3_url, cluster):  # noqa: ARG001
    url, values = s3_url
    truth = answer(job, map)
    found = compared_run(url, lambda work, inputs: with_environment(values, work, inputs))

    assert json.dumps(comparison_as_json(found)) == truth


def test_work_of_a_node_that_is_lost_is_done_again(cluster):
    """Twelve tasks of half a second on three nodes; one is removed after the first second."""

    # Inside of the test, so that Ray sends the function itself: workers cannot import this file.
    def work(number):
        time.sleep(0.5)
        return number * number

    remover = threading.Timer(1.0, lambda: cluster.remove_node(cluster.lost, allow_graceful=False))
    remover.start()
    found = list(mapped_by_ray(work, range(12)))
    remover.join()

    assert found == [n * n for n in range(12)]
    assert n_alive_within(2, patience_s=60) == 2


def n_alive_within(expected, patience_s):
    """The number of nodes that Ray counts as alive; it notices a lost one seconds later."""
    end = time.monotonic() + patience_s
    while (n_alive := sum(node["Alive"] for node in ray.nodes())) != expected and time.monotonic() < end:
        time.sleep(0.2)
    return n_alive
