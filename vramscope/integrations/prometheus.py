"""Serves the figures of recordings to Prometheus, from the training process or for a folder of runs."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from socket import AI_PASSIVE, SOCK_STREAM, getaddrinfo
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from vramscope.errors import MissingExtraError
from vramscope.fleet import known_summary
from vramscope.integrations._measurements import EVERY, Measurement, measurements
from vramscope.loading import discover
from vramscope.store.directory import ranks_of
from vramscope.web_hosts import host_name, is_of_another_site, is_own_address

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
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
        self,
        collect: Callable[[], Iterable[Measurement]],
        port: int = DEFAULT_PORT,
        host: str = "127.0.0.1",
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        """Serve what *collect* returns at each scrape.

        Parameters
        ----------
        collect
            Called on a thread of the server.
        port, host
            The address; port 0 is any free one.
        allowed_hosts
            Names under which it is scraped, beside *host*, this machine's own and addresses in digits.
        """
        registry = CollectorRegistry()
        registry.register(_Collector(collect))
        self._server = _server(_guarded(make_wsgi_app(registry), host, frozenset(allowed_hosts)), host, port)
        self._thread = Thread(target=self._server.serve_forever, name="vramscope-metrics", daemon=True)
        self._thread.start()
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        """The address to scrape."""

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _ScrapedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    """A handler that logs nothing, and waits ten seconds for a request to come."""

    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name of its base
        """Write nothing: stderr is the training's."""


def _server(application: Any, host: str, port: int) -> _ScrapedServer:
    family = getaddrinfo(host or None, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0][0]
    return make_server(
        host,
        port,
        application,
        type("_ScrapedServer", (_ScrapedServer,), {"address_family": family}),
        _Silent,
    )


def _guarded(scrape: Any, host: str, allowed: frozenset[str]) -> Any:
    """Refuse a request under another name: by DNS rebinding any web page could read what is served here."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        called = environ.get("HTTP_HOST", "")
        name, origin = host_name(called), environ.get("HTTP_ORIGIN")
        is_known = name in allowed or is_own_address(name, host)
        if is_known and not is_of_another_site(origin, called):
            return scrape(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"These metrics are not served under that host name; see --allow-host.\n"]

    return answer


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


def serve_runs(
    folder: Path, port: int = DEFAULT_PORT, host: str = "127.0.0.1", allowed_hosts: Iterable[str] = ()
) -> Metrics:
    """Serve the summaries of the newest runs below *folder*, which their recorders renew each minute."""
    return Metrics(lambda: _of_runs(folder), port, host, allowed_hosts)


def _of_runs(folder: Path) -> Iterator[Measurement]:
    for run in discover(folder)[:_MOST_RUNS]:
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
            metric = family(of.name, of.help, labels=list(same[0].labels))
            for each in same:
                metric.add_metric(list(each.labels.values()), each.value)
            yield metric
