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
    from vramscope.analysis.allocations import FoundAllocations
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
    from vramscope.analysis.fit import FitAnswer, FitProgress, Question
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
    from vramscope.analysis.private_pools import PoolUse
    from vramscope.analysis.retained_graphs import RetainedGraphs
    from vramscope.analysis.sampled_peaks import SampledPeaks
    from vramscope.analysis.scaling import Scaling
    from vramscope.analysis.settings_advice import Play, SettingsAdvice
    from vramscope.analysis.shared_device import SharedDevice
    from vramscope.analysis.small_allocations import SmallAllocations
    from vramscope.analysis.step_peaks import StepPeaks
    from vramscope.analysis.strategies import Strategies
    from vramscope.analysis.timeline import Totals
    from vramscope.analysis.tree import Tree
    from vramscope.analysis.verdicts import Verdicts
    from vramscope.analysis.waterfall import Waterfall
    from vramscope.analysis.what_if import ReplayResult
    from vramscope.analysis.wide_numbers import WideNumbers
    from vramscope.analysis.would_fit import Placement
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
        """Find forwards whose graphs are kept until one backward, from the recorded phases.

        Evaluations and recomputes do not count.
        """
        answer: Accumulation = self._ask("accumulation")
        return answer

    def allocations(self, where: str = "") -> FoundAllocations:
        """Return the allocations that meet every term of a search, largest block first.

        Parameters
        ----------
        where
            The search: ``attention`` (part of a function, file or module, or a category), ``"softmax"`` (a whole
            name), ``train.py:13``, ``category:activation``, ``phase:backward``, ``step:3..7``, ``module:*.mlp``,
            ``file:``, ``function:``, ``stream:``, ``size>64MiB``, ``life<2s``, ``alive`` (never freed),
            ``before`` (from before the recording); ``-`` in front excludes. All terms must hold. Empty: all.

        Returns
        -------
        FoundAllocations
            One row per allocation, shape (found,).

        Raises
        ------
        SearchError
            If a term is not understood; it has the letters in ``start`` and ``end``.

        Examples
        --------
        >>> import vramscope
        >>> recording = vramscope.load("sample_traces/transformer").recordings[0]
        >>> found = recording.allocations("category:gradient step:2")
        >>> bool((found.block_bytes > 0).all())
        True
        """
        answer: FoundAllocations = self._ask("allocations", where=where)
        return answer

    def batch_fit(
        self, others: Sequence[Recording] = (), sizes: Sequence[Sequence[int]] | None = None
    ) -> BatchFit:
        """Predict the bytes that a step needs for other batch sizes.

        The first step of a recording does not count: the optimizer has no state yet.

        Parameters
        ----------
        others
            Other runs of the same program, with other batch sizes.
        sizes
            For each recording, the batch size of each of its steps, or one size for all of them. If None, the
            bytes that go into the outermost module count as size.

        Returns
        -------
        BatchFit
            The prediction, or the reason why there is none.
        """
        answer: BatchFit = self._ask("batch_fit", others=others, sizes=sizes)
        return answer

    def by_module(self, instant: int | None = None) -> ModuleBytes:
        """Allocated bytes by module at one instant.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        ModuleBytes
            One row per module and kind of evidence, in bytes and blocks, largest first.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: ModuleBytes = self._ask("by_module", instant=instant)
        return answer

    def by_rank(
        self,
        others: Sequence[Recording] = (),
        time_ns: int | None = None,
        step: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> RankBytes:
        """Memory of each rank at one common moment, or at its own peak in one step.

        Without *time_ns*, *step* and *window* the moment is when all ranks together held most. Events of the same
        nanosecond are applied in the order of the recordings. Clocks of several hosts are not adjusted
        (``rank_comparison.clocks.on_one_clock`` does that).

        Parameters
        ----------
        others
            The other recordings of its run.
        time_ns
            The moment, in nanoseconds of Unix time.
        step
            Compare each rank at its own peak in the step with this number.
        window
            Search the moment within these nanoseconds of Unix time, both ends included.

        Returns
        -------
        RankBytes
            One row per recording, in bytes.

        Raises
        ------
        UsageError
            If no recording has the moment or step, if a clock is missing, or if more than one of time_ns, step
            and window is given.
        """
        answer: RankBytes = self._ask("by_rank", others=others, time_ns=time_ns, step=step, window=window)
        return answer

    def by_stack(self, instant: int | None = None) -> StackBytes:
        """Allocated bytes by call stack at one instant.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        StackBytes
            One row per stack, in bytes and blocks, largest first.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: StackBytes = self._ask("by_stack", instant=instant)
        return answer

    def categories(self, instant: int | None = None) -> Categories:
        """Allocated bytes by category at one instant.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        Categories
            The category of every allocation, and the bytes by category.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: Categories = self._ask("categories", instant=instant)
        return answer

    def churn(self) -> ChurnOverTime:
        """Traffic with the driver, step by step; 10 ms per million events.

        The rows sum up to the churn that ``fragmentation`` gives for the whole recording.
        """
        answer: ChurnOverTime = self._ask("churn")
        return answer

    def compare(self, other: Recording | None = None, tolerance: float = 0.001) -> Comparison:
        """The changes from *recording* to *other*; about 1 s per million events of each.

        Parameters
        ----------
        other
            The later recording; None compares with an empty one.
        tolerance
            Share of the first run's peak below which differences are not reported.

        Returns
        -------
        Comparison
            The aligned steps and all changes, in bytes.
        """
        answer: Comparison = self._ask("compare", other=other, tolerance=tolerance)
        return answer

    def composition(
        self, by: str = "phase", instant: int | None = None, window: tuple[int, int] | None = None
    ) -> Shares:
        """Allocated bytes by one property of the blocks, at one instant.

        Parameters
        ----------
        by
            The property, one of ``BY``.
        instant
            Number of events before the moment; None means the peak of the window.
        window
            Instants ``(start_event, end_event)``, both included, in which to find the peak; None means all.

        Returns
        -------
        Shares
            One row per group, in bytes and blocks, largest first.

        Raises
        ------
        UsageError
            For an unknown property, an instant outside of the recording or an invalid window.
        """
        answer: Shares = self._ask("composition", by=by, instant=instant, window=window)
        return answer

    def empty_cache(self) -> EmptyCache:
        """Count calls of ``empty_cache()``, found by the stacks of the releases.

        A recording without stacks has none.
        """
        answer: EmptyCache = self._ask("empty_cache")
        return answer

    def evaluation_peak(self) -> EvaluationPeak:
        """Return the peaks of evaluation and training, from the recorded phases."""
        answer: EvaluationPeak = self._ask("evaluation_peak")
        return answer

    def fit(self, question: Question | None = None, progress: FitProgress | None = None) -> FitAnswer:
        """Answer what would fit, for one recording: some ten replays of 2 to 3 s per million events.

        Parameters
        ----------
        recording
            One device of one rank.
        question
            Cards, settings, batches and strategies to answer for; the usual ones if None.
        progress
            Callbacks that report the progress.

        Returns
        -------
        FitAnswer
            The verdicts, with every replay that they rest on; sizes in bytes.

        Raises
        ------
        UsageError
            If a size, a setting or a number of devices is impossible.
        """
        answer: FitAnswer = self._ask("fit", question=question, progress=progress)
        return answer

    def fragmentation(self) -> Fragmentation:
        """Measure fragmentation exactly at every instant: ``parts`` equal those of ``identity``; 1 s per million
        events.
        """
        answer: Fragmentation = self._ask("fragmentation")
        return answer

    def gradient_storage(self) -> GradientStorage:
        """Gradients that capture knew by identity and that backward allocated; others are not counted.

        Memory of private pools is not counted: a captured CUDA graph needs its gradients where they are.
        """
        answer: GradientStorage = self._ask("gradient_storage")
        return answer

    def identity(self, instant: int | None = None) -> Identity:
        """The five parts of the reserved bytes at one instant.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        Identity
            The parts, in bytes.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: Identity = self._ask("identity", instant=instant)
        return answer

    def largest_free(self, instants: list[int] | None = None) -> LargestFree:
        """The largest free block of each pool, stream and size class at several instants.

        Takes 0.1 s per million events, and 1 ms per instant.

        Parameters
        ----------
        instants
            Numbers of events before each moment; None chooses up to 128: the last 64 at which the driver was
            asked for memory or an allocation failed, the others evenly spread.

        Returns
        -------
        LargestFree
            One row per instant and kind of memory, in bytes.

        Raises
        ------
        UsageError
            If an instant lies outside of the recording.
        """
        answer: LargestFree = self._ask("largest_free", instants=instants)
        return answer

    def leaks(self, min_bytes_per_step: int = 16384) -> Leaks:
        """Find memory that grows from step to step; needs 7 steps and 1 s per million events.

        Parameters
        ----------
        min_bytes_per_step
            Least growth to report, in bytes per step.

        Returns
        -------
        Leaks
            Every leak with its line, cause and holder, and growth that is no leak.
        """
        answer: Leaks = self._ask("leaks", min_bytes_per_step=min_bytes_per_step)
        return answer

    def lifetimes(self) -> Allocations:
        """Every allocation paired with its free, exact under reuse of addresses; 0.1 s per million events."""
        answer: Allocations = self._ask("lifetimes")
        return answer

    def live_set(self, instant: int | None = None) -> NDArray[Any]:
        """Rows of ``lifetimes`` that were live at one instant, largest block first.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        NDArray[Any]
            Indices into the rows of ``recording.lifetimes()``, int64.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: NDArray[Any] = self._ask("live_set", instant=instant)
        return answer

    def oom(self) -> Failures:
        """Find every failed allocation, with the state of the allocator that it met."""
        answer: Failures = self._ask("oom")
        return answer

    def own_peaks(self, by: str = "phase", window: tuple[int, int] | None = None) -> OwnPeaks:
        """The own peak of each group of allocations within a window.

        Takes 0.1 s per million events more than ``composition``.

        Parameters
        ----------
        by
            The property that forms groups, as in ``composition``.
        window
            Instants ``(start_event, end_event)``, both included; None means all.

        Returns
        -------
        OwnPeaks
            One row per group, in bytes.

        Raises
        ------
        UsageError
            For an unknown property or an invalid window.
        """
        answer: OwnPeaks = self._ask("own_peaks", by=by, window=window)
        return answer

    def peak(self) -> Peak:
        """The maximum of each quantity over all instants, including the one before the first event."""
        answer: Peak = self._ask("peak")
        return answer

    def pins(self, instant: int | None = None) -> Pins:
        """Blocks that keep mostly free segments at one instant. Takes 0.1 s per million events.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.

        Returns
        -------
        Pins
            One row per block, the most kept bytes first.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: Pins = self._ask("pins", instant=instant)
        return answer

    def private_pools(self) -> tuple[PoolUse, ...]:
        """Every private pool that held memory, with its bytes over time; the largest peak of reserved first.

        Before torch 2.12 events do not name their pool: there a pool is known while its segments last to the end.
        """
        answer: tuple[PoolUse, ...] = self._ask("private_pools")
        return answer

    def retained_graphs(self) -> RetainedGraphs:
        """Measure what retained graphs keep, from the recorded calls of backward.

        Outputs that the program itself holds count too; they stay allocated in any case.
        """
        answer: RetainedGraphs = self._ask("retained_graphs")
        return answer

    def sampled_peaks(self) -> SampledPeaks:
        """Bound the peaks of recordings without events; with events, ``step_peaks`` is exact."""
        answer: SampledPeaks = self._ask("sampled_peaks")
        return answer

    def scaling(self) -> Scaling:
        """Find how each line's bytes grow with the size of a step's input.

        Only steps that make the same calls as most steps count. An answer needs three different sizes.
        """
        answer: Scaling = self._ask("scaling")
        return answer

    def settings_advice(
        self, capacity_bytes: int | None = None, play: Play = map, total_bytes: int | None = None
    ) -> SettingsAdvice:
        """Search for an allocator setting that helps: ten replays of 2 to 3 s per million events each.

        Parameters
        ----------
        capacity_bytes
            The most that the allocator can reserve. If None: what the device had if the recording ran out of
            memory, else no limit.
        play
            A function like ``map`` that runs the trials; it may spread them over processes.
        total_bytes
            Size of the whole device, see ``what_if``.

        Returns
        -------
        SettingsAdvice
            Every trial, the advised one, and the reason.
        """
        answer: SettingsAdvice = self._ask(
            "settings_advice", capacity_bytes=capacity_bytes, play=play, total_bytes=total_bytes
        )
        return answer

    def shared_device(self) -> SharedDevice:
        """Find what this process holds outside of torch's allocator while other processes share its device.

        Only samples count during which torch's reserved bytes did not change, so that torch's counter and the
        driver's are of one moment.
        """
        answer: SharedDevice = self._ask("shared_device")
        return answer

    def small_allocations(self) -> SmallAllocations:
        """Count the small allocations of each line in each step."""
        answer: SmallAllocations = self._ask("small_allocations")
        return answer

    def step_peaks(self) -> StepPeaks:
        """Peaks of all steps and phases; 0.2 s per million events."""
        answer: StepPeaks = self._ask("step_peaks")
        return answer

    def strategies(self, n_ranks: int = 8) -> Strategies:
        """Try every strategy on the whole recording; takes about 2 s per million events.

        The strategies need categories: a recording without any gets no advice.

        Parameters
        ----------
        n_ranks
            Number of GPUs that sharding strategies distribute over.

        Returns
        -------
        Strategies
            The advised, the undecided and the ineffective strategies; sizes in bytes.

        Raises
        ------
        UsageError
            If *n_ranks* is below 2.
        """
        answer: Strategies = self._ask("strategies", n_ranks=n_ranks)
        return answer

    def timeline(self) -> Totals:
        """torch's four totals, exact at every instant; 0.1 s per million events.

        Events whose ``block_size`` is 0 contradict the others and are not counted (``allocator.replay``).
        """
        answer: Totals = self._ask("timeline")
        return answer

    def tree(self, instant: int | None = None, *, folded: bool = True) -> Tree:
        """The flame graph of allocated bytes at one instant.

        Parameters
        ----------
        instant
            Number of events before the moment; None means the peak of allocated bytes.
        folded
            Leave out the frames of libraries, Python and C++.

        Returns
        -------
        Tree
            One row per call, in bytes and blocks.

        Raises
        ------
        UsageError
            If the instant lies outside of the recording.
        """
        answer: Tree = self._ask("tree", instant=instant, folded=folded)
        return answer

    def verdicts(self) -> Verdicts:
        """Return what *recording* lacks and the verdicts that this leaves; 1 s per million events.

        Returns
        -------
        Verdicts
            Every missing part with its reason, and whether memory grows.
        """
        answer: Verdicts = self._ask("verdicts")
        return answer

    def waterfall(self) -> Waterfall:
        """Return all parts of the device's memory at every sample; takes 1 s per million events."""
        answer: Waterfall = self._ask("waterfall")
        return answer

    def what_if(
        self,
        conf: str | None = None,
        capacity_bytes: int | None = None,
        empty_cache_after: str = "",
        total_bytes: int | None = None,
        memory_fraction: float | None = None,
    ) -> ReplayResult:
        """Replay the recorded requests under other allocator settings; takes 2 to 3 s per million events.

        Parameters
        ----------
        conf
            Text of ``PYTORCH_CUDA_ALLOC_CONF``; the settings of the recording if None.
        capacity_bytes
            The most that the allocator can reserve; no limit if None.
        empty_cache_after
            ``"step"`` or ``"epoch"``: call ``empty_cache`` after each one; never if empty.
        total_bytes
            Size of the device, which memory fractions refer to; see ``device_total`` if None.
        memory_fraction
            Fraction as in ``set_per_process_memory_fraction``.

        Returns
        -------
        ReplayResult
            Peaks in bytes, counts of driver calls, and the first request that does not fit.

        Raises
        ------
        UsageError
            If torch would refuse *conf*, or no steps or epochs are known to empty the cache after.
        """
        answer: ReplayResult = self._ask(
            "what_if",
            conf=conf,
            capacity_bytes=capacity_bytes,
            empty_cache_after=empty_cache_after,
            total_bytes=total_bytes,
            memory_fraction=memory_fraction,
        )
        return answer

    def wide_numbers(self, instant: int | None = None) -> WideNumbers:
        """Find 64-bit tensors of the model, from the labels that the recorder gave to tensors.

        Parameters
        ----------
        instant
            Instant to look at; the peak of allocated bytes if None.
        """
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
    ) -> Placement:
        """Place one more request at an instant, by the allocator's own rules; 0.1 s per million events.

        Parameters
        ----------
        n_bytes
            Bytes to request; the largest request of the recording if None.
        instant
            Instant to place it at; the peak of allocated bytes if None.
        stream
            Stream of the request.
        pool
            Memory pool of the request; 0 is the default pool.

        Returns
        -------
        Placement
            The source of the block and the free, releasable and reserved bytes at that instant.

        Raises
        ------
        UsageError
            If *n_bytes* is below 1.
        """
        answer: Placement = self._ask("would_fit", n_bytes=n_bytes, instant=instant, stream=stream, pool=pool)
        return answer
