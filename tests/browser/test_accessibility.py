"""axe-core finds nothing, not even moderate, on any page, in either theme."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.pages import pages

pytestmark = pytest.mark.browser
THERE = ".claim, .state h2, #al-table .ag-row, .others, .runs a, .page section:not(.working)"


IN_PIECES = """[...document.querySelectorAll('main *')].filter(each => {
  const size = parseFloat(getComputedStyle(each).fontSize), { width, height } = each.getBoundingClientRect();
  const isNarrow = width < 4 * size && height > 4 * size;
  return isNarrow && !each.childElementCount && each.textContent.trim().length > 8;
}).map(each => each.textContent)"""
"""Texts of which each line has a letter or two."""


@pytest.fixture(scope="module")
def leaky(samples: Path) -> str:
    found: list[str] = [name for name in Data(samples).runs.paths() if "gan" in name]
    return found[0]


@pytest.fixture
def phone(visitor: Any) -> Iterator[Any]:
    before = visitor.page.viewport_size
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    yield visitor
    visitor.page.set_viewport_size(before)


@pytest.mark.parametrize("path", [page.path for page in pages()])
def test_axe_finds_nothing(path: str, leaky: str, axe: str, visitor: Any) -> None:
    assert_clean(visitor, f"{path}?run={leaky}" if path != "/" else "/", axe)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("oom", "out-of-memory"), ("fit", "out-of-memory"), ("ranks", "fleet"),
        ("waterfall", "transformer-cuda"),
        pytest.param("overview", "out-of-memory", marks=pytest.mark.exhaustive),
        pytest.param("allocations", "transformer", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_axe_finds_nothing_where_other_things_happened(
    path: str, name: str, samples: Path, axe: str, visitor: Any
) -> None:
    run = next(each for each in Data(samples).runs.paths() if each.rsplit("-", 1)[0] == name)
    assert_clean(visitor, f"/{path}?run={run}", axe)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/fragmentation", "/leaks", "/ranks",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("/overview", "/peak", "/allocations")
        ),
    ],
)  # fmt: skip
def test_on_a_phone_words_are_whole_and_axe_finds_nothing(
    path: str, leaky: str, samples: Path, axe: str, phone: Any
) -> None:
    run = next(each for each in Data(samples).runs.paths() if "fleet" in each) if path == "/ranks" else leaky
    assert_clean(phone, f"{path}?run={run}" if path != "/" else "/", axe)
    assert phone.page.evaluate(IN_PIECES) == []


@pytest.mark.parametrize("address", ["/nowhere", "/overview?run=gone"])
def test_axe_finds_nothing_where_there_is_nothing(address: str, axe: str, visitor: Any) -> None:
    assert_clean(visitor, address, axe)


def assert_clean(visitor: Any, address: str, axe: str) -> None:
    page = visitor.go(address).page
    page.wait_for_selector(THERE)
    visitor.at_rest()
    page.evaluate(axe)
    found = {}
    for theme in ("light", "dark"):
        visitor.theme(theme)
        visitor.at_rest()
        found[theme] = [each for each in visitor.violations() if "(minor)" not in each]

    assert found["light"] == []
    assert found["dark"] == []
