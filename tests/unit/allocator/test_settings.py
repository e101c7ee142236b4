"""Rounding, segment sizes and splitting by hand; and every way the settings are written down."""

import numpy as np
import pytest

from vramscope.allocator.settings import MIB, UNLIMITED, Settings, TieBreak
from vramscope.errors import UsageError

KIB = 1024


@pytest.mark.parametrize(
    ("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_requests_round_up_to_512_bytes(size, rounded):
    assert Settings().rounded(size) == rounded


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (1200, 1536),  # not above 512 · 4: plainly
        (2048, 2048),
        (2049, 2560),  # steps of 2048 / 4
        (1200 * MIB, 1280 * MIB),  # the example of torch's documentation: 1024, 1280, 1536, 1792
        (1280 * MIB, 1280 * MIB),
        (1800 * MIB, 2048 * MIB),
    ],
)
def test_a_power_of_two_is_divided_into_steps(size, rounded):
    assert Settings.from_conf("roundup_power2_divisions:4").rounded(size) == rounded


def test_intervals_have_their_own_divisions():
    settings = Settings.from_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")

    assert settings.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5
    assert settings.rounded(700 * MIB) == 768 * MIB
    assert settings.rounded(1200 * MIB) == 1280 * MIB
    assert settings.rounded(300 * MIB) == 300 * MIB


def test_many_sizes_round_as_each_alone():
    settings = Settings.from_conf("roundup_power2_divisions:8")
    sizes = np.array([1, 700, 5000, 3 * MIB + 1, 5000, 2**35 + 7])

    assert settings.rounded_all(sizes).tolist() == [settings.rounded(size) for size in sizes.tolist()]
    assert Settings().rounded_all(sizes).tolist() == [Settings().rounded(size) for size in sizes.tolist()]


@pytest.mark.parametrize(
    ("need", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ],
)
def test_segments_have_three_sizes(need, segment):
    assert Settings().segment_size(need) == segment


@pytest.mark.parametrize(
    ("conf", "need", "remainder", "splits"),
    [
        ("", 512, 512, True),
        ("", MIB, 0, False),
        ("", MIB + 512, MIB, False),
        ("", MIB + 512, MIB + 512, True),
        ("expandable_segments:True", 5 * MIB, 512, True),
        ("max_split_size_mb:64", 64 * MIB, 8 * MIB, False),
        ("max_split_size_mb:64", 63 * MIB, 8 * MIB, True),
    ],
)
def test_a_remainder_returns_to_the_free_list_or_not(conf, need, remainder, splits):
    assert Settings.from_conf(conf).splits(need, remainder) is splits


def test_a_block_too_large_to_split_serves_only_requests_of_about_its_size():
    settings = Settings.from_conf("max_split_size_mb:64")

    assert settings.fits(10 * MIB, 63 * MIB)
    assert not settings.fits(10 * MIB, 64 * MIB)
    assert settings.fits(64 * MIB, 83 * MIB)
    assert not settings.fits(64 * MIB, 84 * MIB)


@pytest.mark.parametrize(
    ("torch", "tie_break"),
    [
        ("2.1.0", TieBreak.ADDRESS),
        ("2.11.0+cu128", TieBreak.ADDRESS),
        ("2.12", TieBreak.BLOCK),
        ("2.13.1", TieBreak.SEGMENT),
        ("", TieBreak.SEGMENT),
    ],
)
def test_the_version_decides_among_equal_blocks(torch, tie_break):
    assert Settings.from_conf("", torch).tie_break is tie_break


def test_conf_names_what_it_sets_and_ignores_the_rest():
    settings = Settings.from_conf(
        "backend:native, expandable_segments:True,max_split_size_mb:128,garbage_collection_threshold:0.8,"
        "large_segment_size_mb:64,per_process_memory_fraction:0.5,max_non_split_rounding_mb:30"
    )

    assert settings.expandable_segments
    assert settings.max_split_size == 128 * MIB
    assert settings.garbage_collection_threshold == 0.8
    assert settings.large_segment_size == 64 * MIB
    assert settings.memory_fraction == 0.5
    assert settings.max_non_split_rounding == 30 * MIB


@pytest.mark.parametrize(
    "conf", ["max_split_size_mb:many", "expandable_segments:yes", "roundup_power2_divisions:3"]
)
def test_a_value_that_torch_refuses_is_refused(conf):
    with pytest.raises(UsageError, match=conf.split(":", maxsplit=1)[0]):
        Settings.from_conf(conf)


def test_the_numbers_of_a_snapshot_count_more_than_its_text():
    settings = Settings.from_snapshot(
        {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32,max_non_split_rounding_mb:40",
            "max_split_size": -1,
            "expandable_segments": True,
            "garbage_collection_threshold": 0.0,
            "roundup_power2_divisions": {str(1 << i): 4 if i > 2 else 0 for i in range(16)},
        }
    )

    assert settings.max_split_size == UNLIMITED
    assert settings.max_non_split_rounding == 40 * MIB
    assert settings.expandable_segments
    assert settings.roundup_power2_divisions == (0, 0, 0) + (4,) * 13


def test_nonsense_in_a_snapshot_leaves_the_defaults():
    nonsense = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:[],expandable_segments:maybe,:::",
        "max_split_size": "x",
        "garbage_collection_threshold": [],
        "roundup_power2_divisions": {"1": object()},
        "expandable_segments": 7,
    }

    assert Settings.from_snapshot(nonsense) == Settings()
