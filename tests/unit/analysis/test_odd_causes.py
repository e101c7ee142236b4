"""Why a rank holds more than its group, where its lines leave no doubt."""

import pytest

from vramscope.analysis.rank_comparison import compare_ranks, odd_words
from vramscope.model.device import Device, Process
from vramscope.model.rank_summary import DeviceSummary, LineBytes, PeakPlace, RankSummary
from vramscope.model.stacks import Frame

MIB = 1 << 20
ODD = 5
LAYERS = ("embed", "attention", "mlp", "head")


def line(name, mib, n_blocks, via=""):
    return LineBytes(round(mib * MIB), n_blocks, (Frame(name, f"/net/{name}.py", 3),), via)


def summary(rank, lines, retained=()):
    lines = tuple(sorted(lines, key=lambda each: -each.n_bytes))
    peak = sum(each.n_bytes for each in lines)
    device = DeviceSummary(
        device=Device(0, "cuda", uuid=f"GPU-{rank}"),
        n_events=1000,
        peak={name: PeakPlace(peak, 1, 1) for name in ("allocated", "reserved")},
        lines=lines,
        retained=tuple(retained),
    )
    return RankSummary(Process(rank, 8, "host", 1), devices=(device,))


def usual(factor=1.0):
    return [line("weights", 800, 40), *(line(name, 100 * factor, 12, "linear") for name in LAYERS)]


def odd_of(lines, retained=()):
    found = compare_ranks(
        [
            summary(rank, lines if rank == ODD else usual(), retained if rank == ODD else ())
            for rank in range(8)
        ]
    )
    assert [each.rank for each in found.odd] == [ODD]
    return found.odd[0]


def test_longer_sequences_make_every_line_larger_and_none_more_often():
    odd = odd_of(usual(1.5))

    assert (odd.why, odd.cause) == ("more", "larger_batch")
    assert "padded to a longer sequence" in odd_words(odd)


@pytest.mark.parametrize(
    ("lines", "retained"),
    [
        pytest.param([*usual(), line("extra", 200, 1)], (), id="a line of its own"),
        pytest.param([line("weights", 1000, 40), *usual()[1:]], (), id="one larger line"),
        pytest.param([usual()[0], *(line(name, 150, 18, "linear") for name in LAYERS)], (), id="more blocks"),
        pytest.param(usual(1.5), [line("mlp", 180, 12)], id="kept from earlier steps"),
    ],
)
def test_another_reason_is_not_called_a_larger_batch(lines, retained):
    assert odd_of(lines, retained).cause is None


def test_a_gathering_line_is_named_as_such():
    assert odd_of([*usual(), line("log", 300, 7, "all_gather_object")]).cause == "gathered_here"


def on_device(number, mib):
    return DeviceSummary(
        device=Device(number, "cuda", uuid=f"GPU-{number}"),
        n_events=100,
        peak={"allocated": PeakPlace(mib * MIB, 1, 1)},
        lines=(line("resume", mib, 10),),
    )


def test_a_rank_that_works_on_its_own_device_left_a_copy_on_the_first():
    """Each rank has a device; rank 1 has 96 MiB on device 0 as well."""
    ranks = [
        RankSummary(Process(0, 2, "host", 1), devices=(on_device(0, 800),)),
        RankSummary(Process(1, 2, "host", 1), devices=(on_device(0, 96), on_device(1, 800))),
    ]

    (stray,) = compare_ranks(ranks).strays

    assert (stray.rank, stray.device, stray.own_device, stray.n_bytes) == (1, 0, 1, 96 * MIB)
    assert stray.line.frames[0].file == "/net/resume.py"


def test_ranks_that_have_one_device_alone_leave_no_copies():
    ranks = [RankSummary(Process(rank, 2, "host", 1), devices=(on_device(0, 800),)) for rank in range(2)]

    found = compare_ranks(ranks)

    assert len(found.sharing) == 1
    assert found.strays == ()
