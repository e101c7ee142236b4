"""Passes findings to a function of the program: ``record(on_finding=…)``."""

from collections.abc import Callable

from vramscope.model.finding import Finding, Located
from vramscope.recorder.notifiers.receiver import Receiver


def receiver_of(function: Callable[[Finding], object]) -> Receiver:
    """Return what calls *function* with each finding."""

    def deliver(found: Located) -> None:
        function(found.finding)

    return Receiver("on_finding", deliver)
