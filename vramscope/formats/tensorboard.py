"""Event files of TensorBoard: the scalars that are about memory; needs the package ``tensorboard``."""

from pathlib import Path
from typing import Any

from vramscope.errors import FormatError
from vramscope.formats import Format
from vramscope.formats.log.documents import Records
from vramscope.formats.log.series import Figures
from vramscope.model.recording import Run


def sniff(head: bytes, path: Path) -> bool:
    """Return whether it is such a file: its first record is the version of events."""
    return head[4:8] == b"\0\0\0\0" and b"brain.Event:" in head[:64] and path.suffix != ".gz"


def read(path: Path) -> Run:
    """Read one recording per device that the names of scalars name."""
    try:
        # Late, as it takes half a second and only such files need it.
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError:
        raise FormatError(
            f"{path}: an event file of TensorBoard; to read it: pip install tensorboard"
        ) from None
    found = Figures()
    records = Records(found)
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                records.take({value.tag: number, "timestamp": event.wall_time, "step": event.step})
    if not found:
        raise FormatError(
            f"{path}: an event file of TensorBoard without a scalar about a GPU's memory; write one: "
            'writer.add_scalar("max_memory_allocated", torch.cuda.max_memory_allocated(), step)'
        )
    return Run(name=path.name, path=str(path), recordings=found.recordings())


def _number(value: Any) -> float | None:
    """Return a scalar, of the old form or the new; None if it is something else."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    if value.HasField("tensor") and len(tensor.float_val) == 1:
        return float(tensor.float_val[0])
    return None


FORMAT = Format("tensorboard", sniff, read)
