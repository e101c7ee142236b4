"""The part that all trainers share: a recording whose steps are the trainer's, and how it ends."""

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from vramscope.errors import UsageError
from vramscope.following.recent_peaks import RecentPeaks
from vramscope.recorder import Recorder, record


class TrainerRecording:
    """Records a training whose steps a trainer counts, and has scalars for the trainer's log."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        profile_steps: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        """Prepare the recording; it begins with ``begin``.

        Parameters
        ----------
        directory
            The trace directory, as for ``vramscope.record``.
        profile_steps
            Record only the steps after the first of these numbers of finished steps, up to the second one:
            ``(10, 20)`` is ten steps. None means all.
        **options
            As for ``vramscope.record``.

        Raises
        ------
        UsageError
            If *profile_steps* is no such pair, or an option is invalid.
        """
        if profile_steps is not None and not 0 <= profile_steps[0] < profile_steps[1]:
            raise UsageError(
                f"profile_steps={profile_steps}: two numbers of steps, the first below the second"
            )
        self._window = profile_steps
        self._arguments = (directory, options)
        self._recorder: Recorder | None = None
        self._is_inside = False
        self._n_done = self._n_logged = 0
        self._phase: Any = None
        self._logged_level: dict[int, int] = {}
        self._left: dict[str, float] = {}
        """The scalars of the end of a window, until they are logged."""

    @property
    def recorder(self) -> Recorder:
        """The recorder, which has the directory and opens what was written."""
        if self._recorder is None:
            directory, options = self._arguments
            self._recorder = record(directory, **options)
        return self._recorder

    def begin(self, n_done: int, warn: Callable[[str], None], total: float = 0) -> None:
        """Begin to record, or wait for the first step of the window.

        Parameters
        ----------
        n_done
            The number of steps that the trainer has finished, in an earlier run that it continues.
        warn
            Takes what vramscope finds while the training runs: one sentence on a leak or a failed allocation.
        total
            The number of steps at which the trainer ends; 0, −1 or infinite where it does not know.
        """
        self.recorder.report_to(lambda text: warn(f"vramscope: {text}"))
        self._n_done = n_done
        # The steps of a window are not those of the training.
        if self._window is None and n_done < total < float("inf"):
            self.recorder.expect_steps(int(total) - n_done)
        self._enter_window()

    def step_ends(self, n_done: int) -> None:
        """End a step: the trainer has finished *n_done* steps now."""
        self._n_done = n_done
        if self._is_inside:
            self.recorder.step()
        if self._window is not None:
            self._enter_window()

    def phase_begins(self, name: str) -> None:
        """Begin a phase of the trainer (``eval``, ``save``), which ends an earlier one."""
        self.phase_ends()
        self._phase = self.recorder.phase(name)
        self._phase.__enter__()

    def phase_ends(self) -> None:
        """End the phase of the trainer that is open, if any."""
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None

    def scalars(self, n_done: int | None = None) -> dict[str, float]:
        """The peaks since the last call, by the names that every trainer's log has.

        Parameters
        ----------
        n_done
            The number of finished steps, where ``step_ends`` is not called; None where it is or is unknown.

        Returns
        -------
        dict[str, float]
            ``vram/peak_allocated_bytes`` and so on; of the device with the highest peak, and of each device
            (``vram/device1/peak_allocated_bytes``) where there are several. Empty outside of the window.
        """
        self._n_done = self._n_done if n_done is None else n_done
        if not self._is_inside:
            left, self._left = self._left, {}
            return left
        # A window that begins here has recorded nothing yet.
        if self._window is not None and self._n_done == self._n_logged:
            return {}
        taken = self.recorder.take_peaks()
        n_steps, self._n_logged = self._n_done - self._n_logged, self._n_done
        if not taken:
            return {}
        fullest = max(taken, key=lambda each: each.peak_bytes.get("allocated", -1))
        found = self._of_device("vram", fullest, n_steps)
        if len(taken) > 1:
            for each in taken:
                found |= self._of_device(f"vram/device{each.device}", each, n_steps)
        found |= self._forecast()
        # Before its first event, and where only counters are recorded, a device has no level.
        levels = {each.device: each.level_bytes.get("allocated") for each in taken}
        self._logged_level = {device: level for device, level in levels.items() if level is not None}
        return found

    def _forecast(self) -> dict[str, float]:
        """The step of this recording at which the first device is full; empty where none is in sight."""
        from vramscope.analysis.forecast import forecast_of_summary

        ahead = [
            forecast_of_summary(device, summary.process).forecast
            for summary in self.recorder.summaries()
            for device in summary.devices
        ]
        steps = [each.step for each in ahead if each is not None]
        return {"vram/forecast_step": min(steps)} if steps else {}

    def _of_device(self, prefix: str, peaks: RecentPeaks, n_steps: int) -> dict[str, float]:
        found: dict[str, float] = {
            f"{prefix}/peak_{name}_bytes": peaks.peak_bytes[name]
            for name in ("allocated", "reserved")
            if name in peaks.peak_bytes
        }
        if peaks.fragmentation is not None:
            found[f"{prefix}/fragmentation"] = peaks.fragmentation
        level_bytes = peaks.level_bytes.get("allocated")
        if level_bytes is not None and peaks.device in self._logged_level and n_steps > 0:
            grown = level_bytes - self._logged_level[peaks.device]
            found[f"{prefix}/growth_bytes_per_step"] = grown / n_steps
        for name, n_bytes in peaks.phases.items():
            if name != "user":
                found[f"{prefix}/{name}/peak_allocated_bytes"] = n_bytes
        for name in ("process_used_bytes", "device_used_bytes"):
            if name in peaks.samples:
                found[f"{prefix}/nvml_{name}"] = peaks.samples[name]
        return found

    def end(self, error: BaseException | None = None) -> None:
        """End the recording, with the *error* that ended the training, if any."""
        self.phase_ends()
        if self._is_inside:
            self._is_inside = False
            self.recorder.__exit__(type(error) if error else None, error, None)

    def _enter_window(self) -> None:
        first, end = self._window or (0, float("inf"))
        is_wanted = first <= self._n_done < end
        if is_wanted and not self._is_inside:
            self.recorder.__enter__()
            self._is_inside = True
            self.recorder.mark(f"trainer's step {self._n_done}")
            self.recorder.take_peaks()
            self._n_logged = self._n_done
        elif not is_wanted and self._is_inside:
            self._left = self.scalars()
            self.end()


class UncaughtErrors:
    """Passes the first exception that nobody catches to *ended*, between ``watch`` and ``release``.

    A program's goes to ``sys.excepthook``, which goes on to whatever was there before; a cell's, in IPython,
    is in the result of the cell.
    """

    def __init__(self, ended: Callable[[BaseException], None]) -> None:
        self._ended = ended
        self._is_watching = False
        self._is_hooked = False
        """Whether ours is among the program's hooks; also after the end, where a later hook goes on to it."""
        self._before: Any = sys.excepthook
        self._shell: Any = None

    def watch(self) -> None:
        """Begin to watch; a second call changes nothing."""
        if self._is_watching:
            return
        self._is_watching = True
        # A second time it would come before itself.
        if not self._is_hooked:
            self._is_hooked = True
            self._before, sys.excepthook = sys.excepthook, self._at_exit
        # A program without IPython must not load it.
        ipython = sys.modules.get("IPython")
        self._shell = None if ipython is None else ipython.get_ipython()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)

    def release(self) -> None:
        """Stop to watch; the program's hook is put back unless another one came after it."""
        if not self._is_watching:
            return
        self._is_watching = False
        if sys.excepthook == self._at_exit:
            self._is_hooked = False
            sys.excepthook = self._before
        if self._shell is not None:
            self._shell.events.unregister("post_run_cell", self._after_cell)
            self._shell = None

    def _at_exit(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self._pass_on(error)
        finally:
            self._before(kind, error, trace)

    def _after_cell(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            self._pass_on(error)

    def _pass_on(self, error: BaseException) -> None:
        if self._is_watching:
            self.release()
            self._ended(error)
