"""Bytes and times read back as they were written, and never show a unit's overflow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramscope.units import format_byte_range, format_bytes, format_duration, parse_bytes


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (20 * 2**30, "20.0 GiB"),
        (999 * 2**30, "999 GiB"),
        (2**40 - 1, "1.00 TiB"),
        (-1536, "-1.50 KiB"),
    ],
)
def test_bytes_read_as_a_person_would_write_them(n_bytes, text):
    assert format_bytes(n_bytes) == text


@given(st.integers(min_value=0, max_value=2**55))
def test_formatted_bytes_parse_back_within_their_three_digits(n_bytes):
    assert parse_bytes(format_bytes(n_bytes)) == pytest.approx(n_bytes, rel=0.006)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("20GiB", 20 * 2**30),
        ("1.5 G", 3 * 2**29),
        ("512B", 512),
        (512, 512),
        ("0", 0),
        (" 2 kb ", 2048),
        ("3MiB", 3 * 2**20),
    ],
)
def test_sizes_parse_in_powers_of_1024(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.2.3", "5 parsecs", "1e9", "24", " 1.5 "])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


def test_a_range_whose_ends_read_the_same_is_one_size():
    assert format_byte_range(1536, 2048) == "1.50 KiB to 2.00 KiB"
    assert format_byte_range(10 * 2**20, 10 * 2**20 + 512) == "10.0 MiB"


def test_the_bounds_of_a_range_are_rounded_outward():
    """The nearest texts are inside of each range: 1.50, 2.00 KiB; 1000 MiB; 100 MiB."""
    assert format_byte_range(1535, 2050) == "1.49 KiB to 2.01 KiB"
    assert format_byte_range(0, 1000 * 2**20 + 1) == "0 B to 1001 MiB"
    assert format_byte_range(100 * 2**20 - 1, 3 * 2**30) == "99 MiB to 3.00 GiB"


def test_a_number_without_a_unit_is_asked_about():
    with pytest.raises(ValueError, match="24GiB\\?"):
        parse_bytes("24")


@pytest.mark.parametrize(
    ("n_ns", "text"),
    [
        (5, "5 ns"),
        (1_500, "1.5 µs"),
        (1_500_000, "1.5 ms"),
        (999_600, "1 ms"),
        (999_600_000, "1 s"),
        (3_547_300_000, "3.55 s"),
        (119_960_000_000, "2.0 min"),
        (2_000_000_000, "2 s"),
        (600 * 10**9, "10.0 min"),
        (3 * 3600 * 10**9, "3.0 h"),
    ],
)
def test_durations_pick_their_unit(n_ns, text):
    assert format_duration(n_ns) == text


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 400 + "GiB", "9000000PiB", "1" * 30 + "B"])
def test_a_size_that_no_64_bits_hold_is_told_in_a_short_sentence(text):
    with pytest.raises(ValueError, match="not a size") as told:
        parse_bytes(text)

    assert len(str(told.value)) < 150
