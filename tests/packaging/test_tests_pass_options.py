"""Tests pass what they need as an option: none replaces a constant of the product."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONSTANT = r"_?[A-Z][A-Z0-9_]{2,}"
REPLACED = (
    re.compile(rf"\b(?:setattr|setitem|patch\.object)\(\s*[\w.()\[\]]+,\s*[\"']({CONSTANT})[\"']"),
    re.compile(rf"\b(?:setattr|patch)\(\s*[\"']vramscope[\w.]*\.({CONSTANT})[\"']"),
)
# A command of the tests' own, which an entry point then finds.
OWN = {"COMMAND"}


def replaced(text: str) -> set[str]:
    """The constants that a text replaces in another module."""
    return {name for pattern in REPLACED for name in pattern.findall(text)} - OWN


def test_no_test_replaces_a_constant() -> None:
    found = {
        str(path.relative_to(TESTS)): names
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__) and (names := replaced(path.read_text(encoding="utf-8")))
    }

    assert found == {}


def test_a_replaced_constant_is_seen() -> None:
    seen = [
        'monkeypatch.setattr(module, "_LEAST_DISTANCE", 100)',
        'with patch.object(lives_module, "_STRETCH", 3):',
        'monkeypatch.setitem(load.__globals__, "_MOST_FILES", 3)',
        'monkeypatch.setattr("vramscope.store.summaries._SCHEMA", {})',
        'patch.setattr(\n    conversion_cache,\n    "FEWEST_EVENTS", 1)',
    ]

    assert [len(replaced(text)) for text in seen] == [1] * len(seen)
    assert replaced('monkeypatch.setattr(module, "state_at", spied)') == set()
