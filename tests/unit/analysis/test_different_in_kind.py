"""Two runs differ in kind: by torch, device, settings, checkpointing, and what a step is given."""

import pytest

from vramscope.analysis.compare.names import different_in_kind
from vramscope.model.device import Device, Process
from vramscope.model.marks import Phase, Phases
from vramscope.model.recording import Recording


def made(*phases: Phase, torch: str = "2.13.0", name: str = "A100", **allocator: str) -> Recording:
    rows = Phases.of(phase=[int(each) for each in phases], end_event=[1] * len(phases))
    return Recording(process=Process(torch=torch, allocator=allocator), device=Device(name=name), phases=rows)


def test_equal_runs_and_facts_that_one_lacks_differ_in_nothing() -> None:
    assert different_in_kind(made(), made(), (8, 8)) == []
    assert different_in_kind(made(torch=""), made()) == []


def test_what_differs_is_named_with_both_values() -> None:
    before = made(Phase.FORWARD, torch="2.6.0", expandable_segments="False")
    after = made(Phase.FORWARD, Phase.RECOMPUTE, name="H100", expandable_segments="True", roundup="4")

    assert different_in_kind(before, after) == [
        "torch 2.6.0 → 2.13.0", "device A100 → H100", "expandable_segments False → True",
        "roundup not set → 4", "checkpointing off → on",
    ]  # fmt: skip
    assert different_in_kind(after, before)[-1] == "checkpointing on → off"


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((512, 1024), ["inputs of a step × 2"]),
        ((1536, 512), ["inputs of a step ÷ 3"]),
        ((1024, 1536), ["inputs of a step 1.00 KiB → 1.50 KiB"]),
        ((0, 512), []),
    ],
)
def test_what_a_step_is_given_is_a_factor_where_it_is_whole(pair: tuple[int, int], words: list[str]) -> None:
    assert different_in_kind(made(), made(), pair) == words
