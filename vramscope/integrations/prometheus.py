"""Serves the figures of recordings to Prometheus, from the training process or for a folder of runs."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.errors import MissingExtraError
from vramscope.fleet import known_summary
from vramscope.integrations._measurements import EVERY, Measurement, label_names, measurements
from vramscope.loading import discover
from vramscope.store.directory import ranks_of

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError:
    raise MissingExtraError("prometheus-client", "metrics") from None

if TYPE_CHECKING:
    from vramscope.recorder import Recorder

DEFAULT_PORT = 9464
"""The port that OpenTelemetry's exporters for Prometheus use as well."""
_MOST_RUNS = 20


class Metrics:
    """A running endpoint, ``http://127.0.0.1:9464/metrics``."""

    def __init__(
        self, collect: Callable[[], Iterable[Measurement]], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        """Serve what *collect* returns at each scrape.

        Parameters
        ----------
        collect
            Called on a thread of the server.
        port, host
            The address; port 0 is any free one.
        """
        registry = CollectorRegistry()
        registry.register(_Collector(collect))
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        """The address to scrape."""

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve_recorder(recorder: "Recorder", port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> Metrics:
    """Serve the figures of a training from its own process, exact to the last two seconds.

    Parameters
    ----------
    recorder
        What ``vramscope.record`` returned.
    port, host
        The address. Each rank needs a port of its own; 0 is any free one.

    Returns
    -------
    Metrics
        The running endpoint, which has the address; it ends with the process.
    """
    return Metrics(lambda: measurements(recorder.summaries()), port, host)


def serve_runs(folder: Path, port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> Metrics:
    """Serve the summaries of the newest runs below *folder*, which their recorders renew each minute."""
    return Metrics(lambda: _of_runs(folder), port, host)


def _of_runs(folder: Path) -> Iterator[Measurement]:
    runs = sorted(discover(folder), key=lambda run: run.stat().st_mtime, reverse=True)
    for run in runs[:_MOST_RUNS]:
        stored = [known_summary(rank) for rank in ranks_of(run)]
        yield from measurements((each.summary for each in stored if each is not None), {"run": run.name})


class _Collector:
    """The source of a registry: it asks at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Measurement]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Any]:
        order = {of.name: number for number, of in enumerate(EVERY)}
        found = sorted(self._collect(), key=lambda each: order[each.of.name])
        for of, group in groupby(found, key=lambda each: each.of):
            same = list(group)
            family = CounterMetricFamily if of.is_count else GaugeMetricFamily
            metric = family(of.name, of.help, labels=label_names(same))
            for each in same:
                metric.add_metric(list(each.labels.values()), each.value)
            yield metric
