"""A widget below a cell of a notebook that follows the recording while the cell runs."""

import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vramscope.errors import MissingExtraError
from vramscope.model.rank_summary import DeviceSummary, RankSummary
from vramscope.units import format_bytes, format_count

try:
    import anywidget
    import traitlets
except ImportError:
    raise MissingExtraError("anywidget", "notebook") from None

if TYPE_CHECKING:
    from vramscope.recorder import Recorder

_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
"""The widget is usually less than 2 s late, with the 1.3 s that the recorder retains at most."""
_SHARE = 0.02
"""The part of one core for the widget: after a slow look the pause is longer."""
_MOST_COLUMNS = 240

SCRIPT, STYLE = (Path(__file__).with_suffix(end).read_text(encoding="utf-8") for end in (".js", ".css"))


class Widget(anywidget.AnyWidget):
    """The bytes of a running recording over time, with the figures of this moment in words."""

    _esm = SCRIPT
    _css = STYLE
    shown = traitlets.Dict({"text": "Recording …", "columns": []}).tag(sync=True)
    """Words, and columns: seconds until their end, the most allocated and reserved bytes in them."""


class LiveColumn(NamedTuple):
    """What one look at a recording saw, for the time since the look before."""

    end_s: float
    allocated_bytes: int
    reserved_bytes: int


class LiveView:
    """Follows a recorder from a thread of its own, from the moment it is entered."""

    def __init__(self, recorder: "Recorder") -> None:
        self.widget = Widget()
        self._recorder = recorder
        self._columns: list[LiveColumn] = []
        self._began_ns = self._looked_ns = time.time_ns()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-live", daemon=True)

    def __enter__(self) -> "LiveView":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        # The first look imports modules and says nothing about the later ones.
        pause_s, is_first = _LEAST_PAUSE_S, True
        while not self._is_over.wait(pause_s):
            began = time.thread_time()
            try:
                self._look()
            # The cell goes on without the widget, whatever fails in it.
            except Exception as error:  # noqa: BLE001
                message = f"vramscope stops to follow this cell: {type(error).__name__}: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                return
            fair_s = 0 if is_first else (time.thread_time() - began) / _SHARE
            pause_s, is_first = min(max(_LEAST_PAUSE_S, fair_s), _LONGEST_PAUSE_S), False

    def _look(self) -> None:
        summaries, now_ns = self._recorder.summaries(), time.time_ns()
        device = fullest(summaries)
        if device is None:
            return
        most = highest_since(device, self._looked_ns)
        self._looked_ns = now_ns
        self._columns = thinned([*self._columns, LiveColumn((now_ns - self._began_ns) / 1e9, *most)])
        self.widget.shown = {"text": words(device), "columns": [list(each) for each in self._columns]}


def fullest(summaries: Sequence[RankSummary]) -> DeviceSummary | None:
    """The device of this process with the highest peak; None where nothing was recorded yet."""
    every = [device for summary in summaries for device in summary.devices]
    found = [device for device in every if device.n_events and "allocated" in device.end]
    return max(found, key=lambda device: device.peak["allocated"].n_bytes, default=None)


def highest_since(device: DeviceSummary, since_ns: int) -> tuple[int, int]:
    """The most allocated and reserved bytes since then: of steps that ended, of the peak, and now."""
    steps = device.steps.rows(device.steps.end_ns >= since_ns)

    def most(quantity: str) -> int:
        peak = device.peak[quantity]
        in_steps = int(getattr(steps, quantity).max(initial=0))
        return max(device.end[quantity], in_steps, peak.n_bytes if peak.time_ns >= since_ns else 0)

    return most("allocated"), most("reserved")


def thinned(columns: list[LiveColumn]) -> list[LiveColumn]:
    """The same time in at most half of the columns where there are too many; maxima stay."""
    if len(columns) <= _MOST_COLUMNS:
        return columns
    pairs = [columns[at : at + 2] for at in range(0, len(columns), 2)]
    return [
        LiveColumn(pair[-1].end_s, max(each[1] for each in pair), max(each[2] for each in pair))
        for pair in pairs
    ]


def words(device: DeviceSummary) -> str:
    """The figures of this moment on one line."""
    n_steps = int(device.steps.n_steps.sum())
    peak = device.peak["allocated"]
    parts = [
        f"{format_bytes(device.end['allocated'])} allocated, {format_bytes(device.end['reserved'])} reserved",
        f"peak {format_bytes(peak.n_bytes)}",
        format_count(n_steps, "step") if n_steps else "",
        f"{format_count(device.n_failed, 'failed allocation')}" if device.n_failed else "",
    ]
    return " · ".join(part for part in parts if part)
