"""The command ``vramscope serve``: the dashboard over a folder of runs, or one file."""

import gc
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from vramscope.commands import described
from vramscope.errors import UsageError

from . import check_requirements

DEFAULT_PORT = 8050
_DESCRIPTORS = 1 << 14
"""Enough for a hundred devices."""
_SWITCH_S = 0.0005
"""Seconds until a replay lets an answer go first: a zoom on Fit took 126 ms (median), and 196 with 0.005."""


def _run(args: Namespace) -> int:
    check_requirements()
    from vramscope.remote import local_path

    place = local_path(args.path)
    if place is not None and not place.exists():
        raise UsageError(
            f"{args.path}: this folder or file does not exist; record one with vramscope.record(), or try: "
            "vramscope demo"
        )
    if any(port is not None and not 0 <= port < 1 << 16 for port in (args.port, args.metrics)):
        raise UsageError("a port is a number from 0 to 65535")
    from .server.kept_token import kept_token
    from .server.security import access

    allowed = access(args.host, args.allow_host, use_token=not args.no_token, token=kept_token())
    _allow_descriptors()
    server = _bound(args, allowed)
    url = _url(server.effective_port, allowed, _first_page(place) if place is not None else "")
    print(f"vramscope serves {args.path} at\n\n    {url}\n\nCtrl-C ends it.", flush=True)
    metrics = _metrics(args, place) if args.metrics is not None else None
    if args.open:
        import webbrowser

        webbrowser.open(url)
    # Dash, Plotly and their like are 115,000 objects that live as long as the server. A full collection went
    # through all of them, 55 ms of processor time in which no page was answered: 0.8 s on a busy machine.
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
    try:
        server.run()
    except KeyboardInterrupt:
        print()
    finally:
        server.close()
        if metrics is not None:
            metrics.close()
    return 0


def _allow_descriptors() -> None:
    """Let this process open more files: a live run takes a hundred for each of its devices."""
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _metrics(args: Namespace, place: Path | None) -> Any:
    """Return the running endpoint for Prometheus."""
    from vramscope.integrations.prometheus import serve_runs

    if place is None:
        raise UsageError("--metrics: the runs must be in a folder of this machine")
    try:
        metrics = serve_runs(place, args.metrics, args.host, args.allow_host)
    except OSError as error:
        raise UsageError(f"port {args.metrics} cannot be bound ({error.strerror}): --metrics PORT") from error
    print(f"metrics at {metrics.url}", flush=True)
    return metrics


def _bound(args: Namespace, allowed: Any) -> Any:
    """Return a server on the port of --port; without one on the default port, or on any if that is taken."""
    from . import serve

    try:
        return serve(args.path, allowed, args.host, DEFAULT_PORT if args.port is None else args.port)
    except OSError as error:
        if args.port is None:
            return serve(args.path, allowed, args.host, 0)
        raise UsageError(
            f"port {args.port} cannot be bound ({error.strerror}); leave --port out for a free one"
        ) from error


def _first_page(path: Path) -> str:
    """Return the overview of the run where *path* is a single one, else the list of runs."""
    from vramscope.loading import discover
    from vramscope.store.directory import ranks_of

    from .runs import MOST_OPENED_WHOLE, run_id

    found = discover(path)
    page = "ranks" if len(ranks_of(path)) > MOST_OPENED_WHOLE else "overview"
    return f"{page}?run={run_id(path)}" if found == [path] else ""


def _url(port: int, allowed: Any, page: str = "") -> str:
    named = sorted(allowed.hosts - {"127.0.0.1", "localhost", "::1"})
    host = named[0] if named else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    joint = "&" if "?" in page else "?"
    return f"http://{shown}:{port}/{page}" + (f"{joint}token={allowed.token}" if allowed.token else "")


COMMAND = described("serve", _run, __file__)
