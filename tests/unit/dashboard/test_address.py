"""A URL is a stranger's word."""

import pytest
from vramscope.dashboard.address import Address, parse, restore


def test_an_address_survives_the_way_through_its_url() -> None:
    address = Address(
        "/peak", run="gpt-12ab", rank=1, device=3, t0=5, t1=900, b0=7, b1=1 << 40, at=77, axis="events"
    )
    path, _, search = address.url.partition("?")

    assert parse(path, f"?{search}") == address


@pytest.mark.parametrize(
    "word", ["nan", "1e400", "0x10", "1_000", "٣", "", "-", "9" * 19, "1;2", "../1", "1.5"]
)
def test_what_is_not_a_plain_integer_is_dropped(word: str) -> None:
    assert parse("/overview", f"?at={word}&rank={word}&t0={word}") == Address("/overview")


@pytest.mark.parametrize("run", ["../../etc/passwd", "a/b", "a%00b", "x" * 200, "<script>", "..\\x", "é"])
def test_a_run_is_a_word_and_never_a_path(run: str) -> None:
    assert restore({"run": run}).run == ""


@pytest.mark.parametrize("path", ["//evil.example", "/Über", "javascript:1", "/" + "a" * 200, None])
def test_an_odd_path_is_the_front_page(path: str | None) -> None:
    assert parse(path, None).path == "/"


def test_a_thousand_parameters_are_no_reason_to_fail() -> None:
    assert parse("/overview", "?" + "&".join(f"at={i}" for i in range(1000))) == Address("/overview")
