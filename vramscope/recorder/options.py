"""Checks the options of ``record`` against one another, before anything is recorded."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vramscope.errors import UsageError
from vramscope.recorder.configured import STACK_DEPTH, RecordOptions, working_directory
from vramscope.recorder.notifiers.limit import thresholds
from vramscope.remote import local_path
from vramscope.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from vramscope.capture import Source
    from vramscope.following.summary_writer import SummaryPace

_DEVICES = ("auto", "cuda", "simulated")
_MODES = ("events", "counters")
_LEAST_SIZE = 16 << 20
"""Smallest size cap: a single write must be small compared with it."""
_LONGEST_TAGS = 500
"""Characters of all tags together: the summary of a rank, which has them too, is at most 200,000 bytes."""


class RecorderOptions(NamedTuple):
    """The checked options of one recorder."""

    directory: Path | None
    device: str
    capacity_bytes: int | None
    stack_depth: int
    max_bytes: int | None
    summary_pace: "SummaryPace | None" = None
    """How often the rank's summary is written; each minute where None."""
    url: str = ""
    """Where to upload it; empty for a run that stays on this machine."""
    tags: str = ""
    alert_at: str = ""
    source: "Source | None" = None
    """Records instead of a device of this machine: a dry run."""
    dry_run: str = ""
    """The options of that dry run, as the manifest keeps them."""
    every: int | str | None = None
    """Steps from one with events to the next, or ``auto``; None where it was left out."""


def check(chosen: RecordOptions) -> tuple[int | None, int | None]:
    """Return the capacity and the size cap in bytes; raises UsageError if the options contradict."""
    device, mode, stack_depth = chosen.device, chosen.mode, chosen.stack_depth
    if device not in _DEVICES:
        raise UsageError(f"no device {device!r}; there is: {', '.join(_DEVICES)}")
    if mode not in _MODES:
        raise UsageError(f"no mode {mode!r}; there is: {', '.join(_MODES)}")
    _interval(chosen.every)
    if mode == "counters" and chosen.every is not None:
        raise UsageError("mode='counters' records no events: leave out every, which says how often it would")
    if mode == "counters" and device == "simulated":
        raise UsageError("the simulated device has events only: leave out mode='counters'")
    if type(stack_depth) is not int or stack_depth < 0:
        raise UsageError(f"stack_depth: a number of frames from 0 on, not {stack_depth!r}")
    if mode == "counters" and stack_depth != STACK_DEPTH:
        raise UsageError("mode='counters' records no call stacks: leave out stack_depth")
    if chosen.capacity is not None and (mode == "counters" or device == "cuda"):
        raise UsageError(
            "capacity is of the simulated device; a real one has its own: leave it out, or limit torch with "
            "torch.cuda.set_per_process_memory_fraction()"
        )
    thresholds(chosen.alert_at)
    capacity_bytes, max_bytes = _size("capacity", chosen.capacity), _size("max_size", chosen.max_size)
    if max_bytes is not None and max_bytes < _LEAST_SIZE:
        raise UsageError(f"max_size: at least {format_bytes(_LEAST_SIZE)}, or None for no limit")
    return capacity_bytes, max_bytes


def recorder_options(chosen: RecordOptions, sizes: tuple[int | None, int | None]) -> RecorderOptions:
    """Return the options of a recorder, from checked ones and the *sizes* that ``check`` returned.

    Raises UsageError, MissingExtraError.
    """
    capacity_bytes, max_bytes = sizes
    path, url = _place(chosen.directory)
    source = "counters" if chosen.mode == "counters" else chosen.device
    return RecorderOptions(
        path,
        source,
        capacity_bytes,
        chosen.stack_depth,
        max_bytes,
        url=url,
        tags=tags_text(chosen.tags),
        alert_at=chosen.alert_at,
        every=_interval(chosen.every),
    )


def _interval(every: object) -> int | str | None:
    """Return the steps from one with events to the next, or ``auto``; None where it was left out."""
    if every is None or every == "auto" or (type(every) is int and every > 0):
        return every
    raise UsageError(f"every: a number of steps from 1 on or 'auto', not {every!r}")


def _place(directory: str | os.PathLike[str] | None) -> tuple[Path | None, str]:
    """Return where to record to on this machine, and the URL to upload it to, if any."""
    if directory is None:
        return None, ""
    local = local_path(directory) if isinstance(directory, str) else Path(directory)
    if local is not None:
        return Path(os.path.normpath(working_directory() / local)), ""  # keeps links
    from vramscope.recorder.uploading import spool_of

    url = str(directory).rstrip("/")
    return spool_of(url), url


def _size(name: str, text: str | int | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def tags_text(tags: str | Sequence[str]) -> str:
    """Return tags as the manifest keeps them; they are separated by commas or white space, or by a list."""
    if not isinstance(tags, str) and not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"tags: a text or a list of texts, not {tags!r}")
    text = tags if isinstance(tags, str) else " ".join(tags)
    return " ".join(dict.fromkeys(name_text(text).replace(",", " ").split()))[:_LONGEST_TAGS]


def name_text(name: object) -> str:
    """Return the text for a name that the program passes, such as the number of an epoch."""
    # Never a tensor's values: reading them would wait for the device.
    text = str(name) if isinstance(name, str | int | float) else type(name).__name__
    return text.encode("utf-8", "replace").decode()
