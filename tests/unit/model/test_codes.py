"""The words for machines: every literal is a member, every member is documented and used."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from vramscope.analysis.leaks.causes import ADVICE, CAUSES
from vramscope.model import codes
from vramscope.model.codes import FindingKind, LeakCause, NoteCode, Severity

oom_cause = importlib.import_module("vramscope.analysis.oom.cause")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "codes.md"
SOURCES = [*sorted(ROOT.glob("vramscope/**/*.py")), *sorted(ROOT.glob("dashboard/**/*.py"))]
KINDS = {"Note": (NoteCode, ["code"]), "Finding": (FindingKind, ["kind", "severity"])}
"""The class → what its first arguments are."""


def section(title: str) -> dict[str, str]:
    """The rows of a table of the page: code → sentence."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, flags=re.MULTILINE))


def literals() -> list[str]:
    """Every text that stands where a code is expected, with its place."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(node, "func", None), "id", "")
            if name in KINDS:
                fields = KINDS[name][1]
                given = [*node.args[: len(fields)], *(k.value for k in node.keywords if k.arg in fields)]
                found += [
                    f"{path.relative_to(ROOT)}:{each.lineno} {each.value!r}"
                    for each in given
                    if isinstance(each, ast.Constant)
                ]
            if isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == "code":
                found += [
                    f"{path.relative_to(ROOT)}:{each.lineno} {each.value!r}"
                    for each in node.comparators
                    if isinstance(each, ast.Constant)
                ]
    return found


def test_codes_are_members_of_an_enumeration_everywhere():
    assert literals() == []


@pytest.mark.parametrize("kind", [NoteCode, Severity, FindingKind, LeakCause])
def test_every_member_is_used(kind):
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)

    # The order of severities is used as a whole.
    assert [member.name for member in kind if f"{kind.__name__}.{member.name}" not in text] == []


@pytest.mark.parametrize(
    ("title", "module", "name"),
    [
        ("Notes", codes, "NoteCode"),
        ("Severities of findings", codes, "Severity"),
        ("Kinds of findings", codes, "FindingKind"),
        ("Causes of leaks", codes, "LeakCause"),
        ("Causes of memory errors", oom_cause, "Cause"),
    ],
)
def test_the_page_has_every_member_with_its_own_sentence(title, module, name):
    described = {member.value: member.meaning for member in getattr(module, name)}

    assert section(title) == described
    assert [
        value for value, sentence in described.items() if not re.fullmatch(r"[A-Za-z].*\.", sentence)
    ] == []


@pytest.mark.parametrize("code", [NoteCode.GAP, Severity.WARNING, FindingKind.LEAK, LeakCause.HOOK])
def test_a_code_prints_and_is_written_as_its_value(code):
    value = code.value

    assert f"{code}" == str(code) == f"{code:s}" == value
    assert json.dumps([code, {code: 1}]) == json.dumps([value, {value: 1}])
    assert code == value
    assert hash(code) == hash(value)


def test_every_cause_of_a_leak_has_its_words_and_its_edit():
    assert set(CAUSES) == set(ADVICE) == set(LeakCause)
