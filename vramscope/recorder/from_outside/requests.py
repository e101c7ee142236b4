"""What a request does on the main thread: begin a recording of this process, or end it."""

from collections.abc import Mapping
from typing import Any

from vramscope.errors import CaptureError
from vramscope.recorder import Recorder, active_recorder, record
from vramscope.recorder.configured import completed, working_directory
from vramscope.recorder.from_outside.ending import leave, when_process_ends
from vramscope.recorder.process import default_name


class Attachment:
    """The recordings of this process that were begun from outside, one at a time."""

    def __init__(self) -> None:
        self._active: Recorder | None = None
        self._begun: dict[str, tuple[Mapping[str, Any], Recorder]] = {}
        """The options and the recorder of every run so far, by the requested directory or URL."""

    def begin(self, options: Mapping[str, Any]) -> str:
        """Begin to record, by the options of ``record``; return where to.

        Without a directory the last run with the same options goes on. Raises CaptureError and UsageError.
        """
        active = active_recorder()
        if active is not None:
            raise CaptureError(f"it is being recorded already, to {active.directory}")
        given = {name: value for name, value in options.items() if name != "directory"}
        directory = self._directory(options, given)
        had, known = self._begun.get(directory, (given, None))
        if had != given:
            raise CaptureError(f"it was recorded to {directory} with other options: give another --output")
        recorder = known or record(directory, quiet=True, **given)
        recorder.__enter__()
        if not self._begun:
            when_process_ends(self.leave)
        self._active = recorder
        self._begun[directory] = (given, recorder)
        if recorder.has_failed:
            self.leave(None)
            raise CaptureError("recording it failed, as its stderr says; the program goes on")
        return f"recording to {recorder.directory}"

    def end(self) -> str:
        """End the recording that ``begin`` began; return where it is. Raises CaptureError if none is."""
        if self._active is None:
            by_itself = "; its own program records it" if active_recorder() is not None else ""
            raise CaptureError(f"nothing is attached to it{by_itself}")
        directory = self._active.directory
        self.leave(None)
        return f"recorded to {directory}"

    def leave(self, error: BaseException | None) -> None:
        """End the recording, if there is one, with the exception that ends the program."""
        recorder, self._active = self._active, None
        if recorder is not None:
            leave(recorder, error)

    def _directory(self, options: Mapping[str, Any], given: Mapping[str, Any]) -> str:
        """The directory asked for, or configured, or of the last run with the same options, or a new one."""
        found = options.get("directory") or completed({}).directory
        if found is not None:
            return str(found)
        same = [directory for directory, (had, _) in self._begun.items() if had == given]
        return same[-1] if same else str(working_directory() / "traces" / default_name())
