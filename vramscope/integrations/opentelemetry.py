"""Gives the figures of a recording to an OpenTelemetry meter."""

from functools import partial
from time import monotonic
from typing import Any

from vramscope.errors import MissingExtraError
from vramscope.integrations._measurements import EVERY, Measured, Measurement, measurements
from vramscope.recorder import Recorder

try:
    from opentelemetry.metrics import Meter, Observation, get_meter
except ImportError:
    raise MissingExtraError("opentelemetry-api") from None

_SAME_COLLECTION_S = 0.5
"""All instruments of one collection are asked within this time, and get figures of one moment."""


def observe(recorder: Recorder, meter: Meter | None = None) -> None:
    """Create the instruments of a recording: levels, peaks, peaks of phases, NVML, steps, failures.

    Parameters
    ----------
    recorder
        What ``vramscope.record`` returned.
    meter
        The meter that gets them; without it one of the program's meter provider.
    """
    chosen = meter or get_meter("vramscope")
    source = _Collection(recorder)
    for of in EVERY:
        create = chosen.create_observable_counter if of.is_count else chosen.create_observable_gauge
        # The unit of bytes is written as UCUM does.
        unit = "By" if of.unit == "bytes" else f"{{{of.unit}}}"
        create(
            of.name.replace("_", ".", 1),
            callbacks=[partial(source.observed, of)],
            unit=unit,
            description=of.help,
        )


class _Collection:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._found: tuple[Measurement, ...] = ()
        self._at_s = float("-inf")

    def observed(self, of: Measured, _: Any) -> list[Observation]:
        if monotonic() - self._at_s > _SAME_COLLECTION_S:
            self._found = tuple(measurements(self._recorder.summaries()))
            self._at_s = monotonic()
        return [Observation(each.value, dict(each.labels)) for each in self._found if each.of == of]
