"""What the dashboard is made of: the packages of the extra ``vramscope[dashboard]``."""

from importlib.util import find_spec

from vramscope.errors import MissingExtraError

_PACKAGES = {
    "dash": "dash",
    "plotly": "plotly",
    "dash_mantine_components": "dash-mantine-components",
    "dash_ag_grid": "dash-ag-grid",
    "waitress": "waitress",
}


def check() -> None:
    """Raises MissingExtraError, which names the command that installs them, where one is not installed."""
    for module, package in _PACKAGES.items():
        if find_spec(module) is None:
            raise MissingExtraError(package, "dashboard")
