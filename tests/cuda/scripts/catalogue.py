"""Which workloads there are, and what the process of each needs. Knows no torch: the tests read it too."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """Workloads that run in one process, one after the other: each finds what the last one left in memory."""

    names: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the process is started with."""


GROUPS = {
    "plain": Group(("transformer", "varlen", "checkpointing", "amp", "accumulation", "gan", "empty_cache")),
    "pools": Group(("pools",)),
    "late": Group(("late",)),
    "streams": Group(("streams",), {"STANDIN_EVENT_DELAY": "7"}),
    "pressure": Group(("pressure",), {"STANDIN_TOTAL_MIB": "900"}),
    "expandable": Group(("expandable",), {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
}
GROUP_OF = {name: group for group, known in GROUPS.items() for name in known.names}
