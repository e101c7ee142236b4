"""Every analysis as a method of ``Recording``.

``scripts/generate_questions.py`` writes this file; nobody edits it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from vramscope.analysis.accumulation import Accumulation
    from vramscope.analysis.batch_fit import BatchFit
    from vramscope.analysis.by_module import ModuleBytes
    from vramscope.analysis.by_rank import RankBytes
    from vramscope.analysis.by_stack import StackBytes
    from vramscope.analysis.categories import Categories
    from vramscope.analysis.churn import ChurnOverTime
    from vramscope.analysis.compare import Comparison
    from vramscope.analysis.composition import Shares
    from vramscope.analysis.empty_cache import EmptyCache
    from vramscope.analysis.evaluation_peak import EvaluationPeak
    from vramscope.analysis.fit import FitAnswer, Progress, Question
    from vramscope.analysis.fragmentation import Fragmentation
    from vramscope.analysis.gradient_storage import GradientStorage
    from vramscope.analysis.identity import Identity
    from vramscope.analysis.largest_free import LargestFree
    from vramscope.analysis.leaks import Leaks
    from vramscope.analysis.lifetimes import Allocations
    from vramscope.analysis.oom import Failures
    from vramscope.analysis.own_peaks import OwnPeaks
    from vramscope.analysis.peak import Peak
    from vramscope.analysis.pins import Pins
    from vramscope.analysis.retained_graphs import RetainedGraphs
    from vramscope.analysis.sampled_peaks import SampledPeaks
    from vramscope.analysis.scaling import Scaling
    from vramscope.analysis.settings_advice import Play, SettingsAdvice
    from vramscope.analysis.small_allocations import SmallAllocations
    from vramscope.analysis.step_peaks import StepPeaks
    from vramscope.analysis.strategies import Strategies
    from vramscope.analysis.timeline import Totals
    from vramscope.analysis.tree import Tree
    from vramscope.analysis.waterfall import Waterfall
    from vramscope.analysis.what_if import Outcome
    from vramscope.analysis.wide_numbers import WideNumbers
    from vramscope.analysis.would_fit import Fit
    from vramscope.model.recording import Recording


class Questions:
    """The questions that can be asked of a recording, each answered by the analysis of the same name."""

    __slots__ = ()

    def _ask(self, name: str, **options: Any) -> Any:
        # Late: the analyses depend on the model.
        from vramscope.analysis import find

        analysis = find(name)
        if analysis is None:
            raise AttributeError(f"there is no analysis {name!r}")
        return analysis.run(self, **options)

    def accumulation(self) -> Accumulation:
        """By the phases that were recorded; evaluations and recomputes do not count."""
        answer: Accumulation = self._ask("accumulation")
        return answer

    def batch_fit(
        self, others: Sequence[Recording] = (), sizes: Sequence[Sequence[int]] | None = None
    ) -> BatchFit:
        """Over the steps of *recording* and *others*, runs of the same program.

        *sizes*: for each recording the batch size of each step, or one for all of its steps; without it the
        bytes that went into the outermost module count as size. A recording's first step is left out: the
        optimizer has no state yet.
        """
        answer: BatchFit = self._ask("batch_fit", others=others, sizes=sizes)
        return answer

    def by_module(self, instant: int | None = None) -> ModuleBytes:
        """At *instant*, or at the peak where None."""
        answer: ModuleBytes = self._ask("by_module", instant=instant)
        return answer

    def by_rank(
        self,
        others: Sequence[Recording] = (),
        time_ns: int | None = None,
        step: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> RankBytes:
        """Of *recording* and the *others* of its run: at *time_ns*; or each at its own peak in the *step* that
        people know by that number; or when all together held most, within the *window* of Unix nanoseconds (both
        ends included) or ever.

        What happened at the same nanosecond is taken in the order of the recordings. Clocks of several hosts are
        taken as they are. Raises UsageError for a moment or a step of none of them, and where there is no clock.
        """
        answer: RankBytes = self._ask("by_rank", others=others, time_ns=time_ns, step=step, window=window)
        return answer

    def by_stack(self, instant: int | None = None) -> StackBytes:
        """At *instant*, or at the peak where None."""
        answer: StackBytes = self._ask("by_stack", instant=instant)
        return answer

    def categories(self, instant: int | None = None) -> Categories:
        """At *instant*, or at the peak where None."""
        answer: Categories = self._ask("categories", instant=instant)
        return answer

    def churn(self) -> ChurnOverTime:
        """Step by step; the rows sum up to what ``fragmentation`` says of the whole. 10 ms per million events."""
        answer: ChurnOverTime = self._ask("churn")
        return answer

    def compare(self, other: Recording | None = None, tolerance: float = 0.001) -> Comparison:
        """From *recording* to *other* (to nothing where None); about 1 s per million events of each."""
        answer: Comparison = self._ask("compare", other=other, tolerance=tolerance)
        return answer

    def composition(
        self, by: str = "phase", instant: int | None = None, window: tuple[int, int] | None = None
    ) -> Shares:
        """*by* one of ``BY``; at *instant*, else at the peak of the *window* ``[start_event, end_event)``, else
        at the peak of all.

        Raises UsageError for another word, an instant outside of the recording, or a window that is none.
        """
        answer: Shares = self._ask("composition", by=by, instant=instant, window=window)
        return answer

    def empty_cache(self) -> EmptyCache:
        """Calls told by the stacks of what they release, so a recording without stacks has none."""
        answer: EmptyCache = self._ask("empty_cache")
        return answer

    def evaluation_peak(self) -> EvaluationPeak:
        """Peaks of the two, by the phases that were recorded."""
        answer: EvaluationPeak = self._ask("evaluation_peak")
        return answer

    def fit(self, question: Question | None = None, progress: Progress | None = None) -> FitAnswer:
        """Answer *question* for one recording: some ten replays of 2 to 3 s per million events.

        Parameters
        ----------
        recording
            One device of one rank.
        question
            What to ask; every usual question where None.
        progress
            Callbacks for somebody who waits.

        Raises
        ------
        UsageError
            Where a size, a setting or a number of devices cannot be meant.
        """
        answer: FitAnswer = self._ask("fit", question=question, progress=progress)
        return answer

    def fragmentation(self) -> Fragmentation:
        """Exact at every instant: at each, ``parts`` are those of ``identity``; 1 s per million events."""
        answer: Fragmentation = self._ask("fragmentation")
        return answer

    def gradient_storage(self) -> GradientStorage:
        """Gradients that capture knew by identity and that backward allocated; others are not counted.

        Memory of private pools is not counted: a captured CUDA graph needs its gradients where they are.
        """
        answer: GradientStorage = self._ask("gradient_storage")
        return answer

    def identity(self, instant: int | None = None) -> Identity:
        """At *instant*, or at the peak where None. Replays nothing: what lives then is where it was put."""
        answer: Identity = self._ask("identity", instant=instant)
        return answer

    def largest_free(self, instants: list[int] | None = None) -> LargestFree:
        """At *instants*, in their order; where None, at up to 128: the last half of these moments at which the
        driver was asked for more or an allocation failed, the others evenly spread.

        0.1 s per million events, and 1 ms per instant. Raises UsageError for an instant outside of the recording.
        """
        answer: LargestFree = self._ask("largest_free", instants=instants)
        return answer

    def leaks(self, min_bytes_per_step: int = 16384) -> Leaks:
        """What grows by *min_bytes_per_step* or more; needs 7 steps. 1 s per million events."""
        answer: Leaks = self._ask("leaks", min_bytes_per_step=min_bytes_per_step)
        return answer

    def lifetimes(self) -> Allocations:
        """Every allocation paired with its free, exact under reuse of addresses; 0.1 s per million events."""
        answer: Allocations = self._ask("lifetimes")
        return answer

    def live_set(self, instant: int | None = None) -> NDArray[Any]:
        """Rows of ``lifetimes`` that served tensors at *instant* (the peak where None), largest block first."""
        answer: NDArray[Any] = self._ask("live_set", instant=instant)
        return answer

    def oom(self) -> Failures:
        """Every failed allocation; a state is put together for each."""
        answer: Failures = self._ask("oom")
        return answer

    def own_peaks(self, by: str = "phase", window: tuple[int, int] | None = None) -> OwnPeaks:
        """*by* as in ``composition``, over the instants of the *window* ``[start_event, end_event]``, both
        included; over all where None. 0.1 s per million events more than ``composition``.

        Raises UsageError for another word, or a window that is none.
        """
        answer: OwnPeaks = self._ask("own_peaks", by=by, window=window)
        return answer

    def peak(self) -> Peak:
        """The maxima over all instants, that before the first event included."""
        answer: Peak = self._ask("peak")
        return answer

    def pins(self, instant: int | None = None) -> Pins:
        """At *instant*, or at the peak where None; 0.1 s per million events."""
        answer: Pins = self._ask("pins", instant=instant)
        return answer

    def retained_graphs(self) -> RetainedGraphs:
        """By the marks of backward. Outputs that the program itself holds count as well, and stay in any case."""
        answer: RetainedGraphs = self._ask("retained_graphs")
        return answer

    def sampled_peaks(self) -> SampledPeaks:
        """For recordings without events; where there are events, ``step_peaks`` is exact."""
        answer: SampledPeaks = self._ask("sampled_peaks")
        return answer

    def scaling(self) -> Scaling:
        """Asked of the steps that make the same calls as most do; needs three sizes."""
        answer: Scaling = self._ask("scaling")
        return answer

    def settings_advice(
        self, capacity_bytes: int | None = None, play: Play = map, total_bytes: int | None = None
    ) -> SettingsAdvice:
        """The search, with *capacity_bytes* for the allocator of a device of *total_bytes*, see ``what_if``.
        Where None there is no limit, or what the device had where the recording ran out of it. Ten replays of 2
        to 3 s per million events each; *play* may spread them over processes.
        """
        answer: SettingsAdvice = self._ask(
            "settings_advice", capacity_bytes=capacity_bytes, play=play, total_bytes=total_bytes
        )
        return answer

    def small_allocations(self) -> SmallAllocations:
        """Counted by line and step."""
        answer: SmallAllocations = self._ask("small_allocations")
        return answer

    def step_peaks(self) -> StepPeaks:
        """Peaks of all steps and phases; 0.2 s per million events."""
        answer: StepPeaks = self._ask("step_peaks")
        return answer

    def strategies(self, n_ranks: int = 8) -> Strategies:
        """Tried on the whole recording; *n_ranks* GPUs for what shards. About 2 s per million events.

        Needs categories: of a recording that knows none nothing can be advised.
        """
        answer: Strategies = self._ask("strategies", n_ranks=n_ranks)
        return answer

    def timeline(self) -> Totals:
        """Exact at every instant; 0.1 s per million events.

        Events whose ``block_size`` is 0 contradict the others and count for nothing (``allocator.replay``).
        """
        answer: Totals = self._ask("timeline")
        return answer

    def tree(self, instant: int | None = None, *, folded: bool = True) -> Tree:
        """At *instant*, or at the peak where None. *folded* leaves out the frames of torch, Python and C++."""
        answer: Tree = self._ask("tree", instant=instant, folded=folded)
        return answer

    def waterfall(self) -> Waterfall:
        """At every sample; parts inside of the allocator cost 1 s per million events."""
        answer: Waterfall = self._ask("waterfall")
        return answer

    def what_if(
        self,
        conf: str | None = None,
        capacity_bytes: int | None = None,
        empty_cache_after: str = "",
        total_bytes: int | None = None,
        memory_fraction: float | None = None,
    ) -> Outcome:
        """Under *conf*, the text of ``PYTORCH_CUDA_ALLOC_CONF`` (that of the recording where None), with
        *capacity_bytes* for the allocator to reserve (no limit where None), on a device of *total_bytes* (see
        ``device_total``). 2 to 3 s per million events.

        *empty_cache_after*: "step" or "epoch"; *memory_fraction*: as by ``set_per_process_memory_fraction``.
        Raises UsageError for a text that torch would refuse, and where no epochs are known.
        """
        answer: Outcome = self._ask(
            "what_if",
            conf=conf,
            capacity_bytes=capacity_bytes,
            empty_cache_after=empty_cache_after,
            total_bytes=total_bytes,
            memory_fraction=memory_fraction,
        )
        return answer

    def wide_numbers(self, instant: int | None = None) -> WideNumbers:
        """At *instant*, or at the peak where None; by the labels that capture gave to tensors."""
        answer: WideNumbers = self._ask("wide_numbers", instant=instant)
        return answer

    def window(
        self,
        start_event: int = 0,
        end_event: int | None = None,
        *,
        steps: tuple[int, int] | None = None,
        time_ns: tuple[int, int] | None = None,
    ) -> Recording:
        """A part of the recording as a recording of its own, which begins with the exact state at its start.

        Parameters
        ----------
        start_event, end_event
            The events ``[start_event, end_event)``; to the end of the recording where *end_event* is None.
        steps
            The steps ``[start, end)`` by their index, instead of events.
        time_ns
            The events of ``[start, end)`` in Unix nanoseconds, instead of event numbers.

        Returns
        -------
        Recording
            Its instants count from the first event of the window. Columns are views of the whole's; from a file
            that is mapped, only the window and the way from the checkpoint before it are read.

        Raises
        ------
        UsageError
            There is no such interval, more than one kind of interval is given, or the recording has no clock.
        """
        answer: Recording = self._ask(
            "window", start_event=start_event, end_event=end_event, steps=steps, time_ns=time_ns
        )
        return answer

    def would_fit(
        self, n_bytes: int | None = None, instant: int | None = None, stream: int = 0, pool: int = 0
    ) -> Fit:
        """At *instant*, or at the peak where None; by the allocator's own rules. 0.1 s per million events.

        Without *n_bytes*: the largest request of the recording, as if it came once more.
        """
        answer: Fit = self._ask("would_fit", n_bytes=n_bytes, instant=instant, stream=stream, pool=pool)
        return answer
