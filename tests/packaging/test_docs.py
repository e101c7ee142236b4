"""Documentation: it names every part that exists, and its links lead somewhere."""

import importlib
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from vramscope import registry

ROOT = Path(__file__).parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
KINDS = [
    ("vramscope.commands", "Command"),
    ("vramscope.export", "Export"),
    ("vramscope.formats", "Format"),
    ("vramscope.analysis", "Analysis"),
]


def parts() -> list[tuple[str, str]]:
    found = []
    for package_name, kind in KINDS:
        package = importlib.import_module(package_name)
        offered = registry.parts(package, getattr(package, kind), refused=lambda *_: None)
        found += [(kind, name) for name in offered]
    pages = ROOT / "dashboard" / "pages"
    found += [("Page", file.stem) for file in sorted(pages.glob("[a-z]*.py"))]
    return found


@pytest.mark.parametrize(("kind", "name"), parts())
def test_every_part_is_documented(kind, name):
    text = "\n".join(doc.read_text(encoding="utf-8") for doc in DOCS)

    assert re.search(rf"(`|`vramscope |## ){re.escape(name)}\b", text), f"no documentation of {kind} {name!r}"


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc.name)
def test_links_within_the_project_lead_somewhere(doc):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", doc.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (doc.parent / link).exists()]

    assert broken == []


def test_every_command_of_ours_comes_with_the_distribution():
    ours = {
        point.name for point in entry_points(group="vramscope.commands") if point.dist.name == "vramscope"
    }

    assert ours == {"serve"}
