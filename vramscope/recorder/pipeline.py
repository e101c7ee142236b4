"""One run's way from its source to its trace directory; what fails on it becomes one warning."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tracemalloc import is_tracing
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from vramscope.capture.undisturbed import Clockwork, Guarded, undisturbed, unheld
from vramscope.errors import CaptureError
from vramscope.model.codes import NoteCode
from vramscope.model.marks import MarkKind, Note, Phase
from vramscope.model.recording import Outcome
from vramscope.recorder.configured import working_directory
from vramscope.recorder.logged_peaks import LoggedPeaks
from vramscope.recorder.messages import Messages, warn
from vramscope.recorder.notifiers import Notifiers
from vramscope.recorder.options import RecorderOptions
from vramscope.recorder.process import default_name
from vramscope.stalls import importing

if TYPE_CHECKING:
    from vramscope.capture import Capture
    from vramscope.capture.torch_versions.private_functions import Lack
    from vramscope.following.summary_writer import SummaryWriter
    from vramscope.recorder.uploading import UploadProcess
    from vramscope.store.write.writer import Writer

# Together with the time for writing, this bounds what a killed process loses to two seconds.
_FLUSH_INTERVAL_S = 0.8

Ended: TypeAlias = tuple[Outcome, str]
"""How a run ended, and its error."""


class Pipeline:
    """The source, the summary that its rows pass, and the writer of one run, while blocks come and go."""

    def __init__(self, options: RecorderOptions, messages: Messages) -> None:
        self.messages = messages
        self.capture: Capture | None = None
        self.writer: Writer | None = None
        self.summary: SummaryWriter | None = None
        self.peaks = LoggedPeaks()
        self.has_failed = False
        self.total_steps = 0
        self._options = options
        self._directory: Path | None = None
        self._upload: UploadProcess | None = None
        self._flusher: Clockwork | None = None
        self.notifiers = Notifiers(options.alert_at)
        self._lacks: set[Lack] = set()
        self._n_too_deep = 0
        self._n_missed = 0
        self._n_blocks = 0
        self._ended = (Outcome.FINISHED, "")
        self._guard = Guarded(self.fail, lets_out=(RecursionError,))
        self._failure_claim = threading.Lock()
        """The first failure acquires this lock and never releases it."""

    @property
    def directory(self) -> Path:
        """The run's directory on this machine; before the first block, the requested one."""
        if self._directory is None:
            self._directory = self._options.directory or working_directory() / "traces" / default_name()
        return self._directory

    @property
    def is_placed(self) -> bool:
        """Whether the run has a directory."""
        return self._directory is not None

    def guarded(self, do: Callable[["Capture"], object]) -> None:
        """Call *do* with the source, if there is one: what fails stops the recording and no training."""
        capture = self.capture
        if capture is None:
            return
        try:
            with self._guard:
                do(capture)
        except RecursionError:
            self._n_too_deep += 1

    def mark(self, kind: MarkKind, phase: Phase = Phase.OTHER, value: int = 0, name: str = "") -> None:
        """Record an event of the program at this moment."""
        self.guarded(lambda capture: capture.mark(kind, phase, value, name))

    def open(self) -> "tuple[str, Capture]":
        """Open the source and return its name with it.

        Raises CaptureError if there is no torch or no such device; at this point nothing runs yet.
        """
        try:
            undisturbed(import_everything)
        except ImportError:
            raise CaptureError('recording needs torch: pip install "vramscope[torch]"') from None
        from vramscope.capture import Options, sources

        every = None if self._options.every == 1 else self._options.every
        options = Options(self._options.capacity_bytes, self._options.stack_depth, every)
        if self._options.source is not None:
            return self._options.source.name, self._options.source.open(options, self.fail)
        if self._options.every is None and is_tracing():
            options = replace(options, every="auto")
            self.messages.say("tracemalloc is on, so few steps get events: every=1 gives them to all, slowly")
        offered = sources()
        name = self._options.device
        if name == "auto":
            name = "cuda" if offered["cuda"].available() else "simulated"
        elif not offered[name].available():
            raise CaptureError("no CUDA device here; record(device='simulated') needs none")
        name = offered[name].instead() or name
        if name == "cuda" and self._options.capacity_bytes is not None:
            self.messages.say("capacity is of the simulated device: ignored on cuda", always=True)
        return name, offered[name].open(options, self.fail)

    def begin(self, opened: "tuple[str, Capture] | None") -> None:
        """Start the source that was *opened*, or continue it after the last block."""
        if self.writer is not None and self.capture is not None:
            self.writer.reopen()
            self.capture.resume()
        elif opened is not None:
            self._start(*opened)
        self.start_flusher()

    def _start(self, source: str, capture: "Capture") -> None:
        from vramscope.following.summary_writer import SummaryWriter
        from vramscope.recorder.run_directory import create_writer

        requested = self.directory
        self._directory, self.writer = create_writer(requested, self._options, source, capture)
        if self._directory != requested:
            text = f"{requested} holds another run; recording to {self._directory}"
            self.messages.say(text, always=True)
        self.summary = SummaryWriter(self.writer, self._options.summary_pace)
        self.capture = capture
        capture.start(self.summary)
        self.messages.say(f"recording to {self._options.url or self._directory} ({source})")
        if self._options.url:
            self._start_upload(self.writer.path)

    def _start_upload(self, rank: Path) -> None:
        from vramscope.recorder.uploading import UploadProcess

        try:
            self._upload = UploadProcess(rank, self._options.url)
        # The trace stays in the spool: whatever prevents the upload must not end the recording.
        except Exception as error:  # noqa: BLE001
            text = f"nothing is uploaded while this runs ({error}): `vramscope upload {rank}` does it later"
            self.messages.say(text, always=True)

    def start_flusher(self) -> None:
        """Write what is new about once a second from now on."""
        self._flusher = Clockwork(self.flush, _FLUSH_INTERVAL_S, "writer", at_ends=False)

    def stop_flusher(self) -> None:
        """Wait for the flush that is going on, and begin no other."""
        if self._flusher is not None:
            self._flusher.stop()
            self._flusher = None

    def miss(self, n_blocks: int) -> None:
        """Say that *n_blocks* were entered while the disk stalled, and are not recorded."""
        if n_blocks and not self._n_missed:
            self.messages.say(f"the disk stalled: {_missed(n_blocks)}", always=True)
        self._n_missed += n_blocks

    def flush(self) -> None:
        """Write what is new, and do what else is due; about once a second, on a thread of its own."""
        if not self.has_failed:
            self.guarded(lambda capture: capture.flush())
            self.notifiers.tick(self)

    def put_facts(self, capture: "Capture") -> None:
        """Put into the manifest what is known meanwhile: mesh, expected steps, what this torch lacks."""
        if self.writer is not None and capture.mesh:
            self.writer.mesh(capture.mesh)
        if self.writer is not None and self.total_steps:
            self.writer.total_steps(self.total_steps)
        if self.summary is not None and capture.devices[0].kind == "cuda":
            self._put_lacks(self.summary)

    def _put_lacks(self, summary: "SummaryWriter") -> None:
        """Note where this torch differs from the checked ones; print one line if anything is missing."""
        from vramscope.capture.torch_versions.private_functions import lacks

        new = [each for each in lacks() if each not in self._lacks]
        self._lacks.update(new)
        for each in new:
            summary.note(Note(NoteCode.PRIVATE_FUNCTION, each.text))
        felt = "; ".join(each.text for each in new if each.is_felt)
        if felt:
            self.messages.say(felt, always=True)

    def look_at_end(self, frame: FrameType, error: BaseException | None) -> None:
        """Search what holds memory as the last block ends; not each time, as every step may be a block."""
        watch, n = getattr(self.capture, "watch", None), self._n_blocks + 1
        if watch is not None and n.bit_count() == 1 and n.bit_length() % 2 == 1:  # at powers of four
            self.guarded(lambda _: watch.look_at_end(frame, error))

    def pause(self, ended: Ended | None) -> None:
        """End the last block: stop, write the rest and report."""
        self.guarded(lambda capture: capture.pause())
        if not self.has_failed:
            self.guarded(lambda capture: self._close(capture, ended or self._ended))
            self.notifiers.end_block(self)

    def _close(self, capture: "Capture", ended: Ended) -> None:
        capture.finish()
        if self.writer is None or self.summary is None:
            return
        for note in capture.notes():
            self.summary.note(note)
            if note.code == NoteCode.NOTHING_SEEN:
                self.messages.say(note.text)
        if self._n_too_deep:
            text = "marks of the program had no room below Python's recursion limit, and are missing"
            self.summary.note(Note(NoteCode.RECURSION_LIMIT, text, self._n_too_deep))
            self._n_too_deep = 0
        self._n_blocks += 1
        self._ended = ended
        self._note_missed(self.summary)
        self.put_facts(capture)
        self.writer.close(*self._ended)
        self.summary.finish(*self._ended, is_last=False)

    def _note_missed(self, summary: "SummaryWriter") -> None:
        if self._n_missed:
            summary.note(Note(NoteCode.GAP, f"the disk stalled: {_missed(self._n_missed)}", self._n_missed))
            self._n_missed = 0

    def end(self) -> None:
        """Write what waited for the end of the interpreter, after the last block."""
        if (self._n_blocks > 1 or self._n_missed) and not self.has_failed:
            undisturbed(lambda: self.guarded(self._conclude))
        if self.summary is not None and not self.has_failed:
            summary = self.summary
            undisturbed(lambda: summary.finish(*self._ended, is_last=True))
        undisturbed(self._close_failed)
        undisturbed(lambda: self.notifiers.close(self))
        if self._upload is not None:
            upload, self._upload = self._upload, None
            self.messages.say(upload.finish())

    def _conclude(self, capture: "Capture") -> None:
        if self.writer is not None and self.summary is not None:
            self.writer.reopen()
            self._note_missed(self.summary)
            capture.conclude()
            self.writer.close(*self._ended)

    def fail(self, error: BaseException) -> None:
        """Stop recording, warn once, and let the training go on.

        This runs on any thread and waits for no other: a thread that leaves the block may be waiting for it.
        """
        if not self._failure_claim.acquire(blocking=False):
            return
        text = f"vramscope stopped recording, training goes on: {type(error).__name__}: {error}"
        unheld(lambda: self._give_up(text))
        warn(text)

    def _give_up(self, text: str) -> None:
        self.has_failed = True
        capture, writer = self.capture, self.writer
        if capture is not None:
            # Whatever fails here is a consequence of the failure that is reported.
            with suppress(Exception):
                capture.abandon()
        if writer is not None:
            # Separately: if the note cannot be written, the run must still be closed.
            with suppress(Exception):
                (self.summary or writer).note(Note(NoteCode.RECORDING_FAILED, text))
            self._ended = Outcome.FAILED, text
            self._close_failed()

    def _close_failed(self) -> None:
        """Record that it stopped; at the program's end once more, if the disk refused that before."""
        with suppress(Exception):
            if self.writer is not None:
                self.writer.close(*self._ended)

    def disown(self) -> None:
        """Detach from the run in a forked child, which has no threads."""
        self.has_failed = True
        self._flusher = self.writer = self.summary = None
        self.peaks.forget()
        self.notifiers.disown()
        if self._upload is not None:
            self._upload.disown()
            self._upload = None
        # The capture stays: leaving the block removes its dispatch mode from this thread.
        if self.capture is not None:
            with suppress(Exception):
                self.capture.abandon()


def import_everything() -> None:
    """Import everything that recording needs, also what its threads use later: see ``importing``.

    This must not be interrupted: a module whose import is interrupted stays unusable.
    """
    with importing:
        import torch  # noqa: F401 -- whether it is installed; only capture/ uses it

        from vramscope.capture import sources

        sources()
        import numpy.ma  # noqa: F401 -- NumPy does so late by itself

        import vramscope.analysis.forecast
        import vramscope.following.summary_writer
        import vramscope.loading
        import vramscope.recorder.run_directory
        import vramscope.store.read.reader  # noqa: F401


def _missed(n_blocks: int) -> str:
    were = "recorded block was" if n_blocks == 1 else "recorded blocks were"
    return f"{n_blocks:,} {were} entered meanwhile: what happened in them is missing at least in part"


def outcome_of(error: BaseException | None) -> Ended:
    """Return how a block ended that *error* left, if anything."""
    is_quiet_exit = isinstance(error, SystemExit) and not error.code
    if error is None or is_quiet_exit or isinstance(error, GeneratorExit):
        return Outcome.FINISHED, ""
    return Outcome.FAILED, " ".join(f"{type(error).__name__}: {error}".split())[:2000].removesuffix(":")
