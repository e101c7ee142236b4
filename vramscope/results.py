"""Every type that a method of ``Recording`` or ``Run`` returns or takes, at one address.

``from vramscope.results import Peak, Finding, Category`` is for annotations, ``isinstance`` and ``help``. The
modules that define these types may move; this one stays. ``scripts/generate_questions.py`` writes this file;
nobody edits it.
"""

from vramscope.allocator.settings import Settings, TieBreak
from vramscope.analysis.accumulation import Accumulation
from vramscope.analysis.allocations import FoundAllocations
from vramscope.analysis.annotations import Annotations
from vramscope.analysis.batch_fit import BatchFit, Estimate, Largest, Lines
from vramscope.analysis.batch_fit.step_program import Needs, SizeGrowth, StepProgram
from vramscope.analysis.by_module import ModuleBytes
from vramscope.analysis.by_rank import RankBytes
from vramscope.analysis.by_stack import StackBytes
from vramscope.analysis.categories import Assigned, Categories
from vramscope.analysis.churn import Churn, ChurnOverTime
from vramscope.analysis.compare import Change, Comparison
from vramscope.analysis.compare.names import CodeLine
from vramscope.analysis.composition import Shares
from vramscope.analysis.empty_cache import EmptyCache
from vramscope.analysis.evaluation_peak import EvaluationPeak
from vramscope.analysis.findings import Shared
from vramscope.analysis.fit import FitProgress, Question
from vramscope.analysis.fit.answer import FitAnswer, FitVerdict, Placed, Target
from vramscope.analysis.fit.reruns import DryPeak, Effect, Rerun, Reruns
from vramscope.analysis.fragmentation import Fragmentation, Parts, PinnedBy
from vramscope.analysis.gradient_storage import GradientStorage
from vramscope.analysis.identity import Identity
from vramscope.analysis.kept_activations import KeptActivations
from vramscope.analysis.largest_free import LargestFree
from vramscope.analysis.leaks import Leaks
from vramscope.analysis.leaks.holders import Statement
from vramscope.analysis.leaks.leak import Leak
from vramscope.analysis.leaks.levels import LeakingLine
from vramscope.analysis.lifetimes import Allocations
from vramscope.analysis.lines import LiveBytes
from vramscope.analysis.logits import Logits
from vramscope.analysis.oom import FailurePlace, Failures
from vramscope.analysis.oom.cause import Room
from vramscope.analysis.oom.in_use import CategoryBytes, InUse
from vramscope.analysis.own_peaks import OwnPeaks
from vramscope.analysis.peak import Peak, PeakPoint
from vramscope.analysis.pins import Pins
from vramscope.analysis.private_pools import PoolKind, PoolLevels, PoolName, PoolUse
from vramscope.analysis.retained_graphs import RetainedGraphs
from vramscope.analysis.sampled_peaks import SampledIntervals, SampledPeaks
from vramscope.analysis.scaling import Scaling, ScalingLine
from vramscope.analysis.settings_advice import Candidate, SettingsAdvice, SettingTrial
from vramscope.analysis.shared_device import SharedDevice
from vramscope.analysis.small_allocations import SmallAllocations
from vramscope.analysis.step_peaks import IntervalPeaks, StepPeaks
from vramscope.analysis.strategies import Strategies, Strategy, Undecided
from vramscope.analysis.summary import PrivatePool, StepPeak, Summary
from vramscope.analysis.timeline import Totals
from vramscope.analysis.tree import Tree
from vramscope.analysis.verdicts import Verdicts
from vramscope.analysis.verdicts.growth import GrowthVerdict, MemoryGrowth
from vramscope.analysis.verdicts.missing import Missing, Part
from vramscope.analysis.waterfall import Bar, Waterfall
from vramscope.analysis.waterfall.outside_growth import Grown, OutsideGrowth
from vramscope.analysis.what_if import ReplayResult
from vramscope.analysis.wide_numbers import WideNumbers
from vramscope.analysis.would_fit import BlockSource, Placement
from vramscope.loading import Follower
from vramscope.model.cards import Card
from vramscope.model.codes import LeakCause
from vramscope.model.counters import Counters
from vramscope.model.device import Device, Process
from vramscope.model.finding import Finding
from vramscope.model.holders import Holders, Holding
from vramscope.model.marks import Category, EventThreads, Labels, Marks, Note, Phase, Phases, Steps
from vramscope.model.past import Past, StretchPeaks, SummarizedSteps
from vramscope.model.prediction import (
    ChangedAnswer,
    Choice,
    Headroom,
    Need,
    OnCard,
    OtherRun,
    OutOfMemoryPoint,
    Prediction,
)
from vramscope.model.recording import Outcome, Recording, Run
from vramscope.model.snapshot import Blocks, Segments, Snapshot
from vramscope.model.stacks import Frame, Stacks
from vramscope.model.trace import Trace

__all__ = [
    "Accumulation",
    "Allocations",
    "Annotations",
    "Assigned",
    "Bar",
    "BatchFit",
    "BlockSource",
    "Blocks",
    "Candidate",
    "Card",
    "Categories",
    "Category",
    "CategoryBytes",
    "Change",
    "ChangedAnswer",
    "Choice",
    "Churn",
    "ChurnOverTime",
    "CodeLine",
    "Comparison",
    "Counters",
    "Device",
    "DryPeak",
    "Effect",
    "EmptyCache",
    "Estimate",
    "EvaluationPeak",
    "EventThreads",
    "FailurePlace",
    "Failures",
    "Finding",
    "FitAnswer",
    "FitProgress",
    "FitVerdict",
    "Follower",
    "FoundAllocations",
    "Fragmentation",
    "Frame",
    "GradientStorage",
    "Grown",
    "GrowthVerdict",
    "Headroom",
    "Holders",
    "Holding",
    "Identity",
    "InUse",
    "IntervalPeaks",
    "KeptActivations",
    "Labels",
    "Largest",
    "LargestFree",
    "Leak",
    "LeakCause",
    "LeakingLine",
    "Leaks",
    "Lines",
    "LiveBytes",
    "Logits",
    "Marks",
    "MemoryGrowth",
    "Missing",
    "ModuleBytes",
    "Need",
    "Needs",
    "Note",
    "OnCard",
    "OtherRun",
    "OutOfMemoryPoint",
    "Outcome",
    "OutsideGrowth",
    "OwnPeaks",
    "Part",
    "Parts",
    "Past",
    "Peak",
    "PeakPoint",
    "Phase",
    "Phases",
    "PinnedBy",
    "Pins",
    "Placed",
    "Placement",
    "PoolKind",
    "PoolLevels",
    "PoolName",
    "PoolUse",
    "Prediction",
    "PrivatePool",
    "Process",
    "Question",
    "RankBytes",
    "Recording",
    "ReplayResult",
    "Rerun",
    "Reruns",
    "RetainedGraphs",
    "Room",
    "Run",
    "SampledIntervals",
    "SampledPeaks",
    "Scaling",
    "ScalingLine",
    "Segments",
    "SettingTrial",
    "Settings",
    "SettingsAdvice",
    "Shared",
    "SharedDevice",
    "Shares",
    "SizeGrowth",
    "SmallAllocations",
    "Snapshot",
    "StackBytes",
    "Stacks",
    "Statement",
    "StepPeak",
    "StepPeaks",
    "StepProgram",
    "Steps",
    "Strategies",
    "Strategy",
    "StretchPeaks",
    "SummarizedSteps",
    "Summary",
    "Target",
    "TieBreak",
    "Totals",
    "Trace",
    "Tree",
    "Undecided",
    "Verdicts",
    "Waterfall",
    "WideNumbers",
]
