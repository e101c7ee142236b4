"""Real frameworks, which are looked at as their users do; a test skips where its framework is missing."""

import pytest


def pytest_collection_modifyitems(items):
    """Warnings of a framework are its own."""
    for item in items:
        if "tests/integrations" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default"))
