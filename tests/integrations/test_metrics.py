"""What is scraped at the end of a training is what the report says of it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

torch = pytest.importorskip("torch")

import vramscope  # noqa: E402
from vramscope.commands._report_json import as_json  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_tensors_only")
ROOT = Path(__file__).parents[2]
SIZES = (4, 60, 8, 100, 30, 2, 90, 16)


@pytest.fixture
def trained(tmp_path):
    """A recorder after its training, and what it has recorded."""

    def train(while_training=lambda _: None):
        net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
        optimizer = torch.optim.Adam(net.parameters())
        recorder = vramscope.record(tmp_path / "run", device="simulated", quiet=True)
        with recorder:
            for size in SIZES:
                net(torch.ones(16 * size, 128)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                while_training(recorder)
        return recorder

    return train


def scraped(url):
    """Every sample of an endpoint, read by Prometheus's own parser: (name, labels) → value."""
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(url, timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }


def expected(loaded, **labels):
    """The same samples from the report."""
    (report,) = as_json([recording.summary() for recording in loaded.recordings])["recordings"]
    place = {"rank": str(report["rank"]), "device": str(report["device"]), **labels}

    def at(**more):
        return tuple(sorted({**place, **more}.items()))

    found = {("vramscope_steps_total", at()): len(report["steps"])}
    for name, n_bytes in report["end"].items():
        found[f"vramscope_{name}", at()] = n_bytes
    for name, n_bytes in report["peak"].items():
        found[f"vramscope_peak_{name}", at()] = n_bytes
    phases = [
        phase
        for step in [*report["steps"], report["outside_steps"] or {"phases": []}]
        for phase in step["phases"]
    ]
    for phase in {each["phase"] for each in phases} - {"other"}:
        most = max(each["peak_allocated_bytes"] for each in phases if each["phase"] == phase)
        found["vramscope_phase_peak_allocated_bytes", at(phase=phase)] = most
    found["vramscope_events_total", at()] = report["events"]
    found["vramscope_failed_allocations_total", at()] = 0
    return found


def test_the_last_scrape_of_a_training_process_equals_its_report(trained):
    pytest.importorskip("prometheus_client", reason="needs prometheus-client: make test-integrations")
    from vramscope.integrations.prometheus import serve_recorder

    during = []

    def scrape(recorder):
        during.append(recorder.summaries())

    recorder = trained(scrape)
    metrics = serve_recorder(recorder, port=0)
    found = scraped(metrics.url)
    metrics.close()

    assert found == expected(recorder.load())
    assert len(during) == len(SIZES)


def test_serve_has_the_metrics_of_its_runs_on_a_port_of_their_own(trained, started):
    pytest.importorskip("prometheus_client", reason="needs prometheus-client: make test-integrations")
    recorder = trained()
    recorder._blocks.end()
    folder = recorder.directory.parent
    command = [sys.executable, "-u", "-m", "vramscope", "serve", folder, "--port", "0", "--metrics", "0"]
    with started(command) as server:
        url = next(found[1] for line in server.stdout if (found := re.search(r"metrics at (http\S+)", line)))
        found = scraped(url)

    assert found == expected(recorder.load(), run="run")


def test_a_meter_of_opentelemetry_collects_the_same(trained):
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk: make test-integrations")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from vramscope.integrations.opentelemetry import observe

    reader = InMemoryMetricReader()
    recorder = trained()
    observe(recorder, MeterProvider([reader]).get_meter("training"))
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    found = {
        (metric.name.replace(".", "_"), tuple(sorted(point.attributes.items()))): point.value
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    wanted = {
        (name.removesuffix("_total"), labels): value
        for (name, labels), value in expected(recorder.load()).items()
    }

    assert found == wanted
    assert {metric.unit for metric in scope.metrics if metric.name.endswith("_bytes")} == {"By"}


def test_ranks_are_bounded_and_labels_are_few():
    from dataclasses import replace

    from vramscope.integrations._measurements import MOST_RANKS, measurements
    from vramscope.model.rank_summary import DeviceSummary, RankSummary

    many = [RankSummary(devices=(DeviceSummary(phases={"forward": 1}),)) for _ in range(2 * MOST_RANKS)]
    many = [replace(each, process=replace(each.process, rank=rank)) for rank, each in enumerate(many)]
    found = list(measurements(many))

    assert {each.labels["rank"] for each in found} == {str(rank) for rank in range(MOST_RANKS)}
    assert set().union(*(each.labels for each in found)) == {"rank", "device", "phase"}


def test_every_query_of_the_dashboard_is_of_a_metric_that_exists():
    from vramscope.integrations._measurements import EVERY

    panels = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())["panels"]
    asked = {
        name
        for panel in panels
        for each in panel["targets"]
        for name in re.findall(r"vramscope_\w+", each["expr"])
    }

    assert asked
    assert asked <= {f"{of.name}_total" if of.is_count else of.name for of in EVERY}


PACKAGES = {"prometheus": "prometheus_client", "ray_train": "ray"}
MODULES = ["prometheus", "opentelemetry", "transformers", "lightning", "accelerate"]


@pytest.mark.parametrize("module", [*MODULES, "ray_train", "torchtitan"])
def test_a_missing_framework_is_a_sentence_with_the_command(module):
    package = PACKAGES.get(module, module)
    code = f"import sys; sys.modules[{package!r}] = None\nimport vramscope.integrations.{module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )

    named = package.replace("_", ".")
    assert re.search(
        rf"MissingExtraError: this needs {named}\S*, which is not installed: pip install ", done.stderr
    )


@pytest.mark.parametrize(
    ("bound", "headers", "status"),
    [
        ("127.0.0.1", {"Host": "evil.example"}, 403),
        ("127.0.0.1", {"Host": "127.0.0.1.evil.example:80"}, 403),
        ("127.0.0.1", {"Host": "10.1.2.3"}, 403),
        ("127.0.0.1", {"Host": ""}, 403),
        ("127.0.0.1", {"Host": "[::1"}, 403),
        ("127.0.0.1", {"Host": "localhost:9"}, 200),
        ("127.0.0.1", {"Host": "gpu01.example.org:9"}, 200),
        ("127.0.0.1", {"Host": "localhost", "Origin": "http://["}, 403),
        ("127.0.0.1", {"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ("0.0.0.0", {"Host": "10.1.2.3:9464"}, 200),
        ("0.0.0.0", {"Host": "evil.example"}, 403),
    ],
)
def test_metrics_are_served_under_their_own_names_alone(bound, headers, status):
    from http.client import HTTPConnection

    from vramscope.integrations.prometheus import Metrics

    metrics = Metrics(list, 0, bound, ["gpu01.example.org"])
    try:
        line = HTTPConnection("127.0.0.1", int(metrics.url.rpartition(":")[2].partition("/")[0]), timeout=60)
        line.putrequest("GET", "/metrics", skip_host=True)
        for name, value in headers.items():
            line.putheader(name, value)
        line.endheaders()
        answer = line.getresponse()

        assert answer.status == status
        assert status == 200 or answer.read().count(b"\n") == 1
    finally:
        metrics.close()
