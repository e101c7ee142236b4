"""The words for machines: codes of notes, kinds and severities of findings, causes of leaks.

A member is a string and prints as its value, so JSON and files have the value. Values are stable: a release
adds some and changes none. What each means stands in ``codes.tsv``; ``docs/codes.md`` lists them all.
"""

from enum import Enum

from vramscope.package_data import words

QUANTITIES = ("requested", "allocated", "active", "reserved")
"""The quantities of every total, each including the one before it: requested, rounded up, with pending frees,
in segments."""


class Code(str, Enum):
    """A string out of a closed list; prints as its value."""

    def __str__(self) -> str:
        return str(self.value)

    @property
    def meaning(self) -> str:
        """What it means, in one sentence; '' for a code that ``codes.tsv`` does not list."""
        return words(__file__, "codes.tsv", type(self).__name__).get(self.value, "")


class NoteCode(Code):
    """What a note is about: something that is missing, doubtful, repaired or left out."""

    # What a recording or a file does not contain.
    CHANGED = "changed"
    COUNTERS_ONLY = "counters_only"
    CPU_LEFT_OUT = "cpu_left_out"
    DRIVER_ONLY = "driver_only"
    EMPTY = "empty"
    HOST_MEMORY = "host_memory"
    LOCAL_TIME = "local_time"
    MADE_UP_SEGMENTS = "made_up_segments"
    MOMENTS_ONLY = "moments_only"
    NO_ADDRESSES = "no_addresses"
    NO_CLOCK = "no_clock"
    NO_DEVICE = "no_device"
    NO_HISTORY = "no_history"
    NO_HEADER = "no_header"
    NO_LAYOUT = "no_layout"
    NO_MARKS = "no_marks"
    NO_REQUESTED = "no_requested"
    NO_STACK = "no_stack"
    NO_STACKS = "no_stacks"
    NO_TOTALS = "no_totals"
    NO_TRACE = "no_trace"
    CHECKPOINTS_IDLE = "checkpoints_idle"
    NOTHING_SEEN = "nothing_seen"
    PREDICTION = "prediction"
    SOME_STEPS = "some_steps"
    STARTS_LATE = "starts_late"
    TOTALS_ONLY = "totals_only"
    WINDOW = "window"
    WITHOUT_RESERVE = "without_reserve"

    # What the source reports beside events.
    LIMIT = "limit"
    NON_RELEASABLE = "non_releasable"
    OOMS = "ooms"
    OTHER_PROCESS = "other_process"
    OTHER_PROCESSES = "other_processes"
    PRIVATE_POOLS = "private_pools"
    PROCESS_USED = "process_used"
    SERIES = "series"
    RETRIES = "retries"

    # Events that are missing, or contradict one another.
    ACTIVE_ABOVE_RESERVED = "active_above_reserved"
    ALLOCATED_ABOVE_ACTIVE = "allocated_above_active"
    CONTRADICTION = "contradiction"
    COUNTERS_DIFFER = "counters_differ"
    CROOKED = "crooked"
    END_DIFFERS = "end_differs"
    GAP = "gap"
    NEGATIVE_TOTAL = "negative_total"
    NO_COMPLETION = "no_completion"
    NO_ROOM = "no_room"
    NO_SEGMENT = "no_segment"
    OTHER_SIZE = "other_size"
    OVERLAPPING = "overlapping"
    REORDERED = "reordered"
    REPLAY_DIFFERS = "replay_differs"
    SEGMENT_CONTRADICTION = "segment_contradiction"
    SIZE_CONTRADICTION = "size_contradiction"
    UNKNOWN_ACTION = "unknown_action"
    UNKNOWN_STATE = "unknown_state"
    UNSURE_SIZE = "unsure_size"

    # Files that are damaged or incomplete.
    CHANGED_FILE = "changed_file"
    CUT_FILE = "cut_file"
    DAMAGED = "damaged"
    DIED = "died"
    DOUBLED_BATCHES = "doubled_batches"
    MISSING_BATCHES = "missing_batches"
    MISSING_EVENTS = "missing_events"
    MISSING_FILE = "missing_file"
    MISSING_PART = "missing_part"
    NO_CHECKSUMS = "no_checksums"
    OTHER_RANK = "other_rank"
    RANK_UNREADABLE = "rank_unreadable"
    RANKS_DIFFER = "ranks_differ"
    RANKS_MISSING = "ranks_missing"
    SEVERAL_RUNS = "several_runs"
    SKIPPED = "skipped"
    STOPPED = "stopped"
    THINNED = "thinned"
    TRAILING = "trailing"
    TRUNCATED = "truncated"
    UNKNOWN_REFERENCES = "unknown_references"

    # Limits of recording.
    HISTORY_STOPPED = "history_stopped"
    HOLDERS_INCOMPLETE = "holders_incomplete"
    HOLDERS_UNKNOWN = "holders_unknown"
    NVML_DEVICE = "nvml_device"
    NVML_MEMORY = "nvml_memory"
    NVML_PROCESS = "nvml_process"
    NVML_PROCESS_MEMORY = "nvml_process_memory"
    NVML_UTILIZATION = "nvml_utilization"
    OTHER_THREADS = "other_threads"
    PRIVATE_FUNCTION = "private_function"
    RECORDING_FAILED = "recording_failed"
    RECURSION_LIMIT = "recursion_limit"
    SEEN_LATE = "seen_late"
    SEVERAL_THREADS = "several_threads"
    SHARED_HISTORY = "shared_history"
    SIMULATED_OOM = "simulated_oom"


class Severity(Code):
    """How grave a finding is, the gravest first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class FindingKind(Code):
    """What a finding is about; analyses of other distributions may add their own kinds."""

    GRADIENTS_KEPT = "gradients_kept"
    GRADIENTS_LATE = "gradients_late"
    GRADIENTS_NEVER_CLEARED = "gradients_never_cleared"
    GRADIENT_COPIES = "gradient_copies"
    BATCH_DOMINATES = "batch_dominates"
    CACHE_GROWTH = "cache_growth"
    PRIVATE_POOL_GROWTH = "private_pool_growth"
    EMPTY_CACHE = "empty_cache"
    CHECKPOINTS_IDLE = "checkpoints_idle"
    CHECKPOINT_OF_ALL = "checkpoint_of_all"
    FROZEN_ACTIVATIONS = "frozen_activations"
    EVALUATION_PEAK = "evaluation_peak"
    EVALUATION_KEEPS = "evaluation_keeps"
    GATHERED_AT_ONCE = "gathered_at_once"
    EXCEPTION_KEPT = "exception_kept"
    WEIGHTS_LOADED = "weights_loaded"
    WEIGHTS_COPIED = "weights_copied"
    WORKSPACE_LEFT = "workspace_left"
    GARBAGE = "garbage"
    FILLING_BUFFER = "filling_buffer"
    FRAGMENTATION = "fragmentation"
    GRAPHS_BEFORE_BACKWARD = "graphs_before_backward"
    GROWING_BATCH = "growing_batch"
    LARGE_LOGITS = "large_logits"
    LEAK = "leak"
    LEVEL_REACHED = "level_reached"
    LIMIT_AHEAD = "limit_ahead"
    NON_TORCH_GROWTH = "non_torch_growth"
    OOM = "oom"
    OTHER_PROCESS = "other_process"
    OUTSIDE_GROWTH = "outside_growth"
    PEAKS_GROW = "peaks_grow"
    PEAK = "peak"
    PINNED_GROWTH = "pinned_growth"
    QUADRATIC_MEMORY = "quadratic_memory"
    RETAINED_GRAPH = "retained_graph"
    SHARED_DEVICE = "shared_device"
    SMALL_ALLOCATIONS = "small_allocations"
    WIDE_NUMBERS = "wide_numbers"


class LeakCause(Code):
    """The mistake that makes memory grow: ``Finding.cause`` of a leak."""

    CACHE = "cache"
    CREATE_GRAPH_CYCLE = "create_graph_cycle"
    GRADIENT_NOT_CLEARED = "gradient_not_cleared"
    GROWING_BATCH = "growing_batch"
    GROWING_TENSOR = "growing_tensor"
    HOOK = "hook"
    KEPT_MODEL = "kept_model"
    KEPT_OPTIMIZER = "kept_optimizer"
    KEPT_OUTPUT = "kept_output"
    LOSS_WITH_GRAPH = "loss_with_graph"
    OPTIMIZER_STATE = "optimizer_state"
    REFERENCE_CYCLE = "reference_cycle"
    RETAIN_GRAPH = "retain_graph"
    SAVED_ON_CTX = "saved_on_ctx"
    TRACEBACK = "traceback"
    UNDETACHED_STATE = "undetached_state"
    UNKNOWN = "unknown"
