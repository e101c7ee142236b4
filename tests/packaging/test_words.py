"""The words that users see: plain ones, and of quantities those that docs/concepts.md defines."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from vramscope.model.recording import Recording

ROOT = Path(__file__).parents[2]
CONCEPTS = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")

FORBIDDEN = (
    "told",
    "tells",
    "anew",
    "behind",
    "could not be had",
    "asked wrongly",
    "no such",
    "whose it is",
    "what is there",
    "the one wished for",
)
"""Words of a dialect that a reader must translate, as whole words."""

NOT_QUANTITIES = frozenset(
    (
        "all",
        "any",
        "as",
        "free",
        "highest",
        "is",
        "many",
        "more",
        "s",
        "same",
        "such",
        "the",
        "these",
        "those",
    )
)
"""What may stand before "bytes" and names no quantity."""

UNDEFINED = (
    r"\b(?:memory|GPU|VRAM|RAM) usage\b",
    r"\bmemory (?:consumption|footprint)\b",
    r"\b(?:used|occupied|consumed|cached) (?:bytes|memory) of torch\b",
    r"\b(?:in-use|live) bytes\b",
)
"""Other names for a quantity that has one."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a file with more than one word that is no docstring, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
        if is_text and " " in node.value.strip():
            yield node.lineno, node.value


@cache  # a second of parsing, asked for by every word
def visible() -> list[tuple[str, str]]:
    paths = [*sorted((ROOT / "vramscope").rglob("*.py")), *sorted((ROOT / "dashboard").rglob("*.py"))]
    tables = [*(ROOT / "vramscope").rglob("*.tsv"), *(ROOT / "dashboard").rglob("*.tsv")]
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in paths
        if path.name not in ("questions.py", "_demo_train.py")
        for line, text in texts(path)
    ] + [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in sorted(tables)
        for line, row in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for text in row.split("\t")
        if path.name != "wordings.tsv" and not row.startswith("#")
    ]


@pytest.mark.parametrize("word", FORBIDDEN)
def test_texts_are_in_plain_words(word):
    pattern = re.compile(rf"\b{word}\b")

    assert [f"{place} {text!r}" for place, text in visible() if pattern.search(text)] == []


IN_DOCUMENTS = (
    *FORBIDDEN[:3],
    r"behind (?:it|them|each|every|the)",
    *FORBIDDEN[4:9],
    "cannot be had",
    "with that said",
)


def prose(text: str) -> str:
    """The text of a document without its blocks of code and what is quoted from programs."""
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("path", sorted(DOCUMENTS), ids=lambda path: path.name)
def test_documents_are_in_plain_words(path):
    text = prose(path.read_text(encoding="utf-8"))

    assert [word for word in IN_DOCUMENTS if re.search(rf"\b{word}\b", text)] == []


def test_the_dialect_is_seen_in_a_document():
    text = prose("It is told.\n```\nanew\n```\nThe block behind every request, `tells`, with that said.")

    assert [word for word in IN_DOCUMENTS if re.search(rf"\b{word}\b", text)] == [
        "told",
        IN_DOCUMENTS[3],
        "with that said",
    ]


def test_quantities_are_called_by_their_names():
    pattern = re.compile("|".join(UNDEFINED), re.IGNORECASE)

    assert [f"{place} {text!r}" for place, text in visible() if pattern.search(text)] == []


def test_every_quantity_in_a_text_is_defined_in_concepts():
    said = {
        (word.lower(), place)
        for place, text in visible()
        for word in re.findall(r"\b([A-Za-z]+) bytes\b", text)
        if word.lower() not in NOT_QUANTITIES
    }

    assert len({word for word, _ in said}) >= 3
    assert {(word, place) for word, place in said if f"| `{word}_bytes` |" not in CONCEPTS} == set()


def test_every_term_that_pages_explain_is_defined_in_concepts():
    table = (ROOT / "dashboard" / "components" / "definitions.tsv").read_text(encoding="utf-8")
    terms = [line.split("\t")[1] for line in table.splitlines()]

    forms = (r"`{}`", r"`{}_bytes`", r"\*\*{}\*\*", r"\*{}[* ]")

    assert [
        term
        for term in terms
        if not any(re.search(form.format(term), CONCEPTS, re.IGNORECASE) for form in forms)
    ] == []


def test_the_five_parts_of_reserved_bytes_have_the_names_of_the_analysis():
    table = CONCEPTS.split("identity().parts")[1].split("is checked on every snapshot")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)

    assert names == list(Recording().identity().parts)
    assert f"`reserved = {' + '.join(names)}`" in table


TUTORIALS = sorted(path.stem for path in (ROOT / "docs").glob("tutorial*.md"))
NEWCOMERS = ("start", *TUTORIALS, "troubleshooting", "causes", "comparison", "glossary")
FOR_NEWCOMERS = ("README.md", *(f"docs/{name}.md" for name in NEWCOMERS))


def sentences(text: str) -> list[str]:
    """The sentences of a document's prose: no code, headings, tables or pictures."""
    lines = [line for line in prose(text).splitlines() if not re.match(r"\s*(?:\||#|<|!\[)", line)]
    paragraphs = re.split(r"\n\s*(?:\n|[-*] |\d+\. )", re.sub(r"\]\([^)]*\)", "]", "\n".join(lines)))
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.?!:;])\s+", " ".join(paragraph.split()))
        if len(sentence.split()) > 1
    ]


@pytest.mark.parametrize("name", FOR_NEWCOMERS)
def test_pages_for_newcomers_have_short_sentences(name):
    lengths = sorted(
        len(sentence.split()) for sentence in sentences((ROOT / name).read_text(encoding="utf-8"))
    )

    assert lengths[-1] <= 40
    assert lengths[len(lengths) // 2] <= 16


def facts(text: str) -> tuple[list[str], ...]:
    """Levels of the sections, code without comments, numbers with a unit, and rows of tables."""
    code = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return (
        re.findall(r"^#+ ", text, flags=re.MULTILINE),
        [re.sub(r" +# .*", "", block) for block in code],
        re.findall(r"\d[\d.,]* (?:[KMG]iB|%)", text),
        ["|" * row.count("|") for row in re.findall(r"^\|.*\|$", text, flags=re.MULTILINE)],
    )


@pytest.mark.parametrize("name", ["start", "causes"])
def test_a_chinese_page_has_the_sections_code_and_numbers_of_the_english_one(name):
    english, chinese = (
        (ROOT / "docs" / f"{name}{more}.md").read_text(encoding="utf-8") for more in ("", "-zh")
    )

    assert facts(chinese) == facts(english)
    assert f"({name}-zh.md)" in english
    assert f"({name}.md)" in chinese
