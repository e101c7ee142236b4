"""A recording of one rank on one device, and the run of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING, Any

from vramscope.model.codes import NoteCode
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.holders import Holders
from vramscope.model.marks import Labels, Marks, Note, Phases, Steps
from vramscope.model.past import Past
from vramscope.model.prediction import Prediction
from vramscope.model.questions import Questions
from vramscope.model.snapshot import Snapshot
from vramscope.model.stacks import Sources, Stacks, stacks_of
from vramscope.model.trace import Action, Trace

if TYPE_CHECKING:
    from vramscope.analysis.findings import Shared
    from vramscope.analysis.summary import Summary
    from vramscope.model.finding import Finding

_MOST_AT_A_GLANCE = 8
_ALLOCATED_ALONE = frozenset({NoteCode.MOMENTS_ONLY, NoteCode.NO_STACKS, NoteCode.NO_ADDRESSES})
"""Notes of sources that state allocated and, perhaps, reserved bytes: messages, traces of the profiler."""


class Outcome(str, Enum):
    """How a run ended."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """An exception left the recorded block."""
    DIED = "died"
    """The process is gone and did not close its recording."""
    FILE = "file"
    """Not a run: a file that was loaded."""

    @property
    def word(self) -> str:
        """The outcome as lists and headers name it."""
        return {"finished": "ended", "died": "cut off"}.get(self.value, self.value)


@dataclass(frozen=True, slots=True)
class Recording(Questions):
    """All data of one rank on one device.

    Every analysis is a method: ``recording.peak()``, ``recording.timeline()`` (see ``vramscope.analysis``).
    """

    source: str = "snapshot"
    """``cuda``, ``simulated`` or ``snapshot``."""
    process: Process = field(default_factory=Process)
    device: Device = field(default_factory=Device)
    trace: Trace = field(default_factory=Trace.of)
    stacks: Stacks = field(default_factory=stacks_of)
    initial: Snapshot = field(default_factory=Snapshot)
    """The state before the first event: memory that predates the trace."""
    final: Snapshot | None = None
    """The state at the end *as the source reported it* (a truth to check against); None where it did not."""
    checkpoints: tuple[Snapshot, ...] = ()
    """States in between, ordered by event, where available: a window starts from the nearest one."""
    pools: tuple[tuple[int, int], ...] = ((0, 0),)
    """torch's pool ids, under the index that columns use."""
    marks: Marks = field(default_factory=Marks.of)
    steps: Steps = field(default_factory=Steps.of)
    phases: Phases = field(default_factory=Phases.of)
    labels: Labels = field(default_factory=Labels.of)
    holders: Holders = field(default_factory=Holders.of)
    counters: Counters = field(default_factory=Counters.of)
    pinned: "Recording | None" = None
    """Pinned host memory of the process as a device (torch ≥ 2.14), in the recording of its first device."""
    past: Past = field(default_factory=Past)
    """For a run that outgrew its size cap: what remains of its beginning."""
    notes: tuple[Note, ...] = ()
    outcome: Outcome = Outcome.FILE
    """How the process that recorded it ended, or that it still runs."""
    sources: Sources = field(default_factory=dict)
    """The program's lines around those in the stacks; empty for a file that torch wrote."""
    prediction: Prediction | None = None
    """For a dry run: the whole answer, with the verdict for each card and what it needs without a limit."""

    @property
    def has_reserved(self) -> bool:
        """Whether the source knows reserved bytes; otherwise they are zeros without meaning."""
        trace = self.trace
        if self.source != "snapshot" or self.initial.segments.size.any():
            return True
        return bool(trace.of_segments.any()) or not (trace.action == Action.ALLOC).any()

    @property
    def unknown_quantities(self) -> frozenset[str]:
        """Quantities that the source does not state: zeros or another one stand for them in the events."""
        codes = {note.code for note in self.notes}
        found = set() if self.has_reserved else {"reserved"}
        if NoteCode.NO_REQUESTED in codes:
            found.add("requested")
        # A memory summary beside the messages of a log states all four.
        if codes & _ALLOCATED_ALONE and NoteCode.TOTALS_ONLY not in codes:
            found |= {"requested", "active"}
        return frozenset(found)

    @property
    def has_layout(self) -> bool:
        """Whether the source says where in the segments blocks lie; otherwise their places are made up."""
        return all(note.code != NoteCode.NO_LAYOUT for note in self.notes)

    @property
    def has_allocations(self) -> bool:
        """Whether single allocations are in it; otherwise nothing, or a message's totals made into events."""
        has_any = bool(len(self.trace) or len(self.initial.blocks))
        return has_any and (self.has_layout or self.trace.has_clock)

    @property
    def run_words(self) -> str:
        """``run 2`` of a file that has several runs one after another; '' for the first."""
        is_later = self.outcome is Outcome.FILE and self.process.restarts
        return f"run {self.process.restarts + 1}" if is_later else ""

    def summary(self) -> "Summary":
        """Every figure of ``vramscope report``: peaks, what was live, steps, categories, findings.

        Returns
        -------
        Summary
            Sizes in bytes; ``None`` where the recording does not say. Takes seconds per million events.

        Examples
        --------
        >>> import vramscope
        >>> (recording,) = vramscope.load("sample_traces/transformer").recordings
        >>> recording.summary().peak["allocated"].n_bytes
        25830912
        """
        # Late: the analyses depend on the model.
        from vramscope.analysis.summary import summarize

        return summarize(self)

    def findings(self) -> "tuple[Finding, ...]":
        """What the analyses find, the gravest first: errors, warnings, then the rest, by bytes.

        Returns
        -------
        tuple of Finding
            Empty where nothing is found. The peak is no finding: ``peak()`` has it. Takes seconds per
            million events.

        Examples
        --------
        >>> import vramscope
        >>> (recording,) = vramscope.load("sample_traces/gan-retain-graph").recordings
        >>> [(str(finding.kind), str(finding.cause), finding.holder) for finding in recording.findings()]
        [('leak', 'retain_graph', 'history')]
        """
        # Late: the analyses depend on the model.
        from vramscope.analysis.findings import findings

        return findings(self)

    def __repr__(self) -> str:
        """One line at a prompt."""
        where = f"rank {self.process.rank}, device {self.device.index}, {self.source}"
        return f"<Recording of {where}: {len(self.trace):,} events, {len(self.steps):,} steps>"

    def _repr_html_(self) -> str:
        """A short overview for a notebook."""
        # Late: what formats a recording for a notebook depends on the analyses.
        from vramscope.export.notebook import html

        return html(self)

    # Hidden from type checkers, which would take every misspelt question for one: own analyses are methods
    # (Questions), and this finds those of other distributions.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """The analysis of that name, bound to this recording."""
            if name.startswith("_"):
                raise AttributeError(name)
            # Late: the analyses depend on the model.
            from vramscope.analysis import find

            analysis = find(name)
            if analysis is None:
                raise AttributeError(f"Recording has no field and no analysis {name!r}")
            return MethodType(analysis.run, self)


@dataclass(frozen=True, slots=True)
class Run:
    """All recordings of one job, or of one file."""

    name: str
    path: str
    recordings: tuple[Recording, ...]
    """Recordings ordered by rank, then device."""
    outcome: Outcome = Outcome.FILE
    started_ns: int = 0
    """Unix time; 0 where unknown."""
    ended_ns: int = 0
    """Unix time of the last thing written, in nanoseconds; 0 where unknown."""
    error: str = ""
    """The exception that ended the run, on one line."""
    notes: tuple[Note, ...] = ()

    def __repr__(self) -> str:
        """One line at a prompt."""
        return f"<Run {self.name!r}, {self.outcome.value}: {list(self.recordings)}>"

    def _repr_html_(self) -> str:
        """A short overview of the first few recordings, for a notebook."""
        return "".join(recording._repr_html_() for recording in self.recordings[:_MOST_AT_A_GLANCE])

    def findings(self) -> "list[Shared]":
        """What the analyses find in all recordings, the gravest first.

        Returns
        -------
        list of Shared
            Findings that differ in their figures alone are one, with every rank and device that has it.
        """
        # Late: the analyses depend on the model.
        from vramscope.analysis.findings import located, shared

        return shared(located((recording, recording.findings()) for recording in self.recordings))

    @property
    def ranks(self) -> Mapping[int, tuple[Recording, ...]]:
        """Rank → its recordings, one per device."""
        found: dict[int, tuple[Recording, ...]] = {}
        for recording in self.recordings:
            rank = recording.process.rank
            found[rank] = (*found.get(rank, ()), recording)
        return found
