"""What only the samples show in a browser: the anatomy of a step in a file, and what the menu counts."""

from pathlib import Path
from typing import Any

import pytest
from vramscope.dashboard.data import Data

pytestmark = pytest.mark.browser


def named(samples: Path, name: str) -> str:
    return next(run for run, path in Data(samples).runs.paths().items() if path.name == name)


def test_the_anatomy_of_a_step_is_saved_with_its_modules_and_bytes(samples: Path, visitor: Any) -> None:
    visitor.go(f"/phases?run={named(samples, 'transformer-cuda')}").page.wait_for_selector(
        "#ph-stack[data-ready]"
    )
    visitor.page.hover("#ph-stack")
    with visitor.page.expect_download() as download:
        visitor.page.locator("#ph-stack-frame .saves button:text-is('SVG')").click()
    content = download.value.path().read_text()

    assert "Anatomy of step 1, by category and module" in content
    assert "optimizer state 5.54 MiB = 2 × parameters" in content
    assert "blocks.0.mlp +2.00 MiB" in content
    assert content.count("<g ") == content.count("</g>")


def test_the_menu_counts_the_findings_of_a_run_whatever_page_a_link_opens(
    samples: Path, visitor: Any
) -> None:
    visitor.go(f"/waterfall?run={named(samples, 'gan-retain-graph')}")

    visitor.page.wait_for_selector("#menu a:has-text('Leaks') .count")
    assert visitor.page.inner_text("#menu a:has-text('Leaks')").split() == ["Leaks", "1"]
