"""The packages that the dashboard needs: those of the extra ``vramscope[dashboard]``."""

from importlib.util import find_spec

from vramscope.errors import MissingExtraError

_PACKAGES = {"dash": "dash", "plotly": "plotly", "dash_ag_grid": "dash-ag-grid", "waitress": "waitress"}


def check() -> None:
    """Raise MissingExtraError, which names the command that installs them, where a package is missing."""
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise MissingExtraError(package, "dashboard")
