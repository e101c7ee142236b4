"""The dashboard, a Dash app, imported as vramscope.dashboard. Importing it loads neither Dash nor Plotly."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramscope.errors import MissingExtraError

if TYPE_CHECKING:
    from .data import Data
    from .runs import Pace
    from .server.security import Access

__all__ = ["create_app", "serve"]

_PACKAGES = {"dash": "dash", "plotly": "plotly", "dash_ag_grid": "dash-ag-grid", "waitress": "waitress"}
"""The packages of the extra ``vramscope[dashboard]``, by what is imported."""


def check_requirements() -> None:
    """Raise MissingExtraError, which names the command that installs them, where a package is missing."""
    for module, package in _PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, "dashboard")


def create_app(root: Path | str, allowed: Access | None = None, pace: Pace | None = None) -> Any:
    """Return the dashboard over every run below *root* as a ``dash.Dash``.

    Parameters
    ----------
    root
        A folder of runs, one run, or one file; or the URL of one, such as ``s3://bucket/runs``.
    allowed
        Token and host names that are let in; a new token where None.
    pace
        How often files are checked; the defaults where None.
    """
    from .server.app import build_app
    from .server.security import Access

    return build_app(_data(root, pace), allowed or Access())


def _data(root: Path | str, pace: Pace | None = None, **of_store: float) -> Data:
    """Return the door to the runs at a path or a URL; *of_store* are options of a library of a store."""
    from vramscope.remote import local_path

    from .data import Data

    place = local_path(root)
    if place is not None:
        return Data(place, pace=pace)
    from .queries.remote_library import RemoteLibrary

    library = RemoteLibrary(str(root), **of_store)
    return Data(library.root, library, pace)


def _read_ahead(root: Path | str, allowed: Access) -> Any:
    """Return the app, and start to read the newest runs while the browser starts."""
    from .server import pending_pages
    from .server.app import build_app

    data = _data(root)
    # From a store, what nobody asked for is not copied.
    if data.runs.shown_root == str(data.runs.root):
        pending_pages.read_ahead(data)
    return build_app(data, allowed)


def serve(root: Path | str, allowed: Access, host: str = "127.0.0.1", port: int = 0) -> Any:
    """Return a server that is bound and ready to ``.run()``.

    Parameters
    ----------
    root
        A folder of runs, one run, or one file.
    allowed
        Token and host names that are let in.
    host
        Address to bind.
    port
        TCP port; 0 takes a free one.

    Raises
    ------
    OSError
        The port is taken, or the address is not one of this machine.
    """
    from .server.connections import Server
    from .server.malloc_tuning import give_back
    from .server.security import MAX_BODY_BYTES

    give_back()
    bound = _bind(host, port)
    try:
        app = _read_ahead(root, allowed)
        limits: dict[str, Any] = {"threads": 8, "ident": None, "max_request_body_size": MAX_BODY_BYTES}
        return Server(app.server, bound, **limits)
    except BaseException:
        bound.close()
        raise


def _bind(host: str, port: int) -> socket.socket:
    """Return a bound socket; ours, because waitress leaves its own open where the port is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
