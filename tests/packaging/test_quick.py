"""``make quick`` runs the tests that are nearest to a file, as a person would choose them."""

from pathlib import Path

import pytest
from quick import imports, name_of, nearest_tests

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "nearest"),
    [
        ("vramscope/units.py", "tests/unit/test_units.py"),
        ("vramscope/store/manifest.py", "tests/unit/store/test_manifest.py"),
        # A registry finds its parts by their names: no file imports them.
        ("vramscope/commands/export.py", "tests/unit/commands/test_export.py"),
        ("docs/api.md", "tests/packaging/test_api.py"),
        ("tests/unit/model/test_table.py", "tests/unit/model/test_table.py"),
    ],
)
def test_the_first_test_of_a_file_is_the_one_about_it(file, nearest):
    assert nearest_tests([Path(file)])[0] == Path(nearest)


def test_a_conftest_leads_to_the_tests_of_its_folder():
    chosen = nearest_tests([Path("tests/remote/conftest.py")])

    assert {path.name for path in chosen} == {path.name for path in (ROOT / "tests/remote").glob("test_*.py")}


def test_the_dashboard_is_named_as_it_is_installed():
    assert name_of(Path("dashboard/pages/__init__.py")) == "vramscope.dashboard.pages"
    assert "vramscope.dashboard.address" in imports(Path("dashboard/pages/waterfall.py"))
