"""A page that is laid out again as a whole when its run has grown."""

from collections.abc import Callable
from typing import Any

from dash import Input, Output, State
from dash.exceptions import PreventUpdate

from vramscope.errors import VramscopeError

from ..address import Address, restore
from ..data import Data, View
from ..server.callbacks import Stored


def register(app: Any, data: Data, prefix: str, content: Callable[[Data, View, Address], Any]) -> None:
    """Register the callback that puts *content* into ``<prefix>-content`` with every version of the run."""

    @app.callback(
        Output(f"{prefix}-content", "children"), Input("version", "data"), State("address", "data"),
        prevent_initial_call=True,
    )  # fmt: skip
    def renew(_: Any, stored: Stored | None) -> Any:
        address = restore(stored)
        try:
            return content(data, data.view(address), address)
        except VramscopeError as error:
            raise PreventUpdate from error
