"""The site of the documents builds without a warning and a network, and axe has nothing against it."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

import vramscope

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; no proxy answers, so whatever asks the network fails."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    home = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", home]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    return home


def page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def test_every_document_is_a_page(site):
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}

    assert documents | {"index", "reference"} <= {path.stem for path in site.glob("*.html")}


def test_no_page_loads_anything_from_elsewhere(site):
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\bsrc(?:set)?="?(https?:[^">]+)', text)
        loaded += re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*href="?(https?:[^">]+)', text)

        assert loaded == [], path.name


def test_links_within_the_site_lead_to_a_page_and_a_heading(site):
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    broken = []
    for name, text in texts.items():
        for link in re.findall(r'<a[^>]*\bhref="([^":]*)"', text):
            target, _, anchor = unescape(link).partition("#")
            there = texts.get(target or name)
            is_page = there is not None or (site / target).exists()
            if not is_page or (anchor and there and f'id="{anchor}"' not in there and anchor != "__skip"):
                broken.append((name, link))

    assert [each for each in broken if each[0] != "404.html"] == []


def test_the_reference_has_every_public_name_and_question(site):
    text = page(site, "reference")
    names = [name for name in vramscope.__all__ if not name.startswith("_")]

    assert [name for name in names if f"vramscope.{name}" not in text] == []
    assert "When was most memory in use, and how much was it?" in text


def test_the_first_page_is_the_readme_with_its_pictures(site):
    text = page(site, "index")

    for picture in re.findall(r'src(?:set)?="(images/[^"]+)"', text):
        assert (site / picture).exists()
    assert "exact to the byte, live or afterwards" in text


GRAVE = ("moderate", "serious", "critical")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width", "theme"),
    [
        ("index", 1280, "light"), ("tutorial", 400, "dark"), ("reference", 400, "light"),
        pytest.param("index", 1280, "dark", marks=pytest.mark.exhaustive),
        pytest.param("tutorial", 400, "light", marks=pytest.mark.exhaustive),
        pytest.param("reference", 400, "dark", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_axe_finds_nothing(site, chromium, name, width, theme):
    kept = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(f"file://{site}/{name}.html")
    page.evaluate((Path(kept.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    is_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.close()

    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in GRAVE] == []
    assert not is_wide
