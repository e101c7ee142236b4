"""What the step of an optimizer was making when a request failed: state, or a temporary for each gradient."""

from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.strategies.optimizer import WITH_8_BITS, being_made
from vramscope.model.recording import Recording
from vramscope.model.table import Array
from vramscope.package_data import words
from vramscope.units import format_bytes

_TEXTS = words(__file__, "advice.tsv", "making")
_COUNTS = {1: "one value", 2: "two values", 3: "three values"}


def making(recording: Recording, found: Allocations, event: int, gradients: Array) -> tuple[str, str]:
    """Return how far an optimizer is with what it makes for each of *gradients*, and what takes less."""
    made = being_made(recording, found, event, gradients)
    if made is None:
        return "", ""
    name, n_values, done, left, is_state = made
    of_eight = f".{name}8bit" if name in WITH_8_BITS else ""
    # Where even one moment of all parameters is more than what was there, that would fail again.
    one_moment = ", with one moment (Lion)" if "Adam" in name and done >= left else ""
    figures = [format_bytes(n_bytes) for n_bytes in (done, done + left, left)]
    values = _COUNTS.get(n_values, f"{n_values} values")
    claim = _TEXTS["claim"].format(name, "its state, " * is_state + values, *figures)
    return claim, _TEXTS["advice"].format(of_eight, one_moment)
