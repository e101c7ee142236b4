"""The allocator settings under which a recording was made."""

from dataclasses import replace

from vramscope.allocator.settings import Settings
from vramscope.model.recording import Recording
from vramscope.model.snapshot import Snapshot


def recorded_settings(recording: Recording, state: Snapshot) -> Settings:
    """Return the allocator settings of *recording*, as its source or the segments of *state* show them."""
    process = recording.process
    settings = Settings.from_snapshot(process.allocator, torch=process.torch)
    if state.segments.is_expandable.any():  # torch before 2.3 reports no settings, but that shows
        return replace(settings, expandable_segments=True)
    return settings
