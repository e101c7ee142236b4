"""No dataclass compares its arrays with the equality that dataclasses generate: that one raises."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("vramscope", "dashboard") for path in (ROOT / folder).rglob("*.py")]
BASES = {"EqualByValue", "Table"}


def raising(text: str) -> list[str]:
    """The dataclasses of a file with fields of arrays, whose equality would be the generated one."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and any(map(_compares, node.decorator_list))
        and not BASES & {ast.unparse(base) for base in node.bases}
        and any("Array" in ast.unparse(field.annotation) for field in _fields(node))
    ]


def _compares(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.startswith("dataclass") and "eq=False" not in text


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [each for each in node.body if isinstance(each, ast.AnnAssign)]


def test_results_with_arrays_are_compared_by_value_or_not_at_all() -> None:
    assert {str(path): names for path in FILES if (names := raising(path.read_text()))} == {}


@pytest.mark.parametrize(
    ("options", "bases", "expected"),
    [("", "", ["Some"]), ("(eq=False)", "", []), ("(slots=True)", "(EqualByValue)", []), ("", "(Table)", [])],
)
def test_the_search_finds_such_a_class(options: str, bases: str, expected: list[str]) -> None:
    text = f"@dataclass{options}\nclass Some{bases}:\n    rows: NDArray[Any]\n"

    assert raising(text) == expected
