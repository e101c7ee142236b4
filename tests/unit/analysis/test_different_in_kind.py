"""Two runs differ in kind: by torch, device, settings, checkpointing, and what a step is given."""

import pytest

from vramscope.analysis.compare.kinds import different_in_kind
from vramscope.model.device import Device, Process
from vramscope.model.marks import Category, Labels, Phase, Phases
from vramscope.model.recording import Recording


def made(
    *phases: Phase, torch: str = "2.13.0", name: str = "A100", number: int = 4, optimizer: str = "",
    **allocator: str,
) -> Recording:  # fmt: skip
    rows = Phases.of(
        phase=[int(each) for each in phases], end_event=[1] * len(phases),
        name=[int(each == Phase.OPTIMIZER) for each in phases], names=("", optimizer),
    )  # fmt: skip
    labels = Labels.of(
        event=[0], address=[1], category=[Category.PARAMETER], element_bytes=[number], name=[0]
    )
    process = Process(torch=torch, allocator=allocator)
    return Recording(process=process, device=Device(name=name), phases=rows, labels=labels)


def given(*shapes: str, number: int = 4, parameter: str = "0.weight") -> Recording:
    """A recording whose steps have an input of one shape after another; the recorder labels it afterwards."""
    n, names = len(shapes), (*shapes, parameter)
    starts = range(0, 10 * n, 10)
    phases = Phases.of(
        phase=[int(Phase.FORWARD)] * n, step=range(n), depth=[0] * n, start_event=starts,
        end_event=[start + 5 for start in starts], name=[0] * n,
    )  # fmt: skip
    labels = Labels.of(
        event=[start + 5 for start in starts] + [5], address=range(n + 1), name=range(n + 1), names=names,
        category=[Category.INPUT] * n + [Category.PARAMETER], element_bytes=[number] * n + [4],
    )  # fmt: skip
    return Recording(phases=phases, labels=labels)


def test_equal_runs_and_facts_that_one_lacks_differ_in_nothing() -> None:
    assert different_in_kind(made(), made(), (8, 8)) == []
    assert different_in_kind(made(torch=""), made()) == []
    assert different_in_kind(given("8 × 64"), given("8 × 64"), (8, 16)) == []


def test_what_differs_is_named_with_both_values() -> None:
    before = made(Phase.FORWARD, Phase.OPTIMIZER, torch="2.6.0", optimizer="SGD", expandable_segments="False")
    after = made(
        Phase.FORWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, name="H100", number=2, optimizer="AdamW",
        expandable_segments="True", roundup="4",
    )  # fmt: skip

    assert different_in_kind(before, after) == [
        "torch 2.6.0 → 2.13.0", "device A100 → H100", "expandable_segments False → True",
        "roundup not set → 4", "bytes of a parameter's numbers 4 → 2", "optimizer SGD → AdamW",
        "checkpointing off → on",
    ]  # fmt: skip
    assert different_in_kind(after, before)[-1] == "checkpointing on → off"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (("8 × 64", 8), ("16 × 64", 8), "batch × 2 (inputs 8 × 64 → 16 × 64)"),
        (("9 × 3 × 8 × 8", 4), ("3 × 3 × 8 × 8", 4), "batch ÷ 3 (inputs 9 × 3 × 8 × 8 → 3 × 3 × 8 × 8)"),
        (("8 × 64", 4), ("12 × 64", 4), "batch 8 → 12 (inputs 8 × 64 → 12 × 64)"),
        (("8 × 64", 8), ("8 × 128", 8), "sequence × 2 (inputs 8 × 64 → 8 × 128)"),
        (("8 × 64", 4), ("8 × 128", 4), "inputs 8 × 64 → 8 × 128"),
        (("8 × 64", 8), ("16 × 128", 8), "inputs 8 × 64 → 16 × 128"),
        (("8 × 64", 4), ("8 × 1 × 64", 4), "inputs 8 × 64 → 8 × 1 × 64"),
        (("8 × 64", 4), ("8 × 64", 2), "inputs 8 × 64 → 8 × 64, with numbers of 4 → 2 bytes"),
    ],
)  # fmt: skip
def test_a_side_of_the_inputs_has_its_name_where_it_is_surely_that(
    before: tuple[str, int], after: tuple[str, int], words: str
) -> None:
    one, other = (given(*[shape] * 3, number=number) for shape, number in (before, after))

    assert different_in_kind(one, other) == [words]


@pytest.mark.parametrize("parameter", ["layers.0.self_attn.in_proj_weight", "rnn.weight_ih_l0"])
def test_the_first_side_has_no_name_beside_modules_that_take_time_first(parameter: str) -> None:
    before, after = (given(shape, parameter=parameter) for shape in ("64 × 8 × 16", "128 × 8 × 16"))

    assert different_in_kind(before, after) == ["inputs 64 × 8 × 16 → 128 × 8 × 16"]


def test_one_longer_step_of_many_does_not_differ_in_kind() -> None:
    assert different_in_kind(given(*["8 × 64"] * 5), given(*["8 × 64"] * 4, "8 × 96")) == []
    assert different_in_kind(given("8 × 64", "8 × 65"), given("8 × 66", "8 × 67"), (0, 0)) == []


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((512, 1024), ["inputs of a step × 2"]),
        ((1536, 512), ["inputs of a step ÷ 3"]),
        ((1024, 1536), ["inputs of a step 1.00 KiB → 1.50 KiB"]),
        ((0, 512), []),
    ],
)
def test_without_shapes_the_bytes_of_inputs_are_compared(pair: tuple[int, int], words: list[str]) -> None:
    assert different_in_kind(made(), made(), pair) == words
