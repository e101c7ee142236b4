"""A number of a result carries its unit in its name, as CONTRIBUTING says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ANALYSIS = Path(__file__).parents[2] / "vramscope" / "analysis"
QUANTITIES = {
    "requested",
    "allocated",
    "active",
    "reserved",
    "rounding",
    "pending",
    "inactive_split",
    "releasable",
}
NUMBERS = {"int", "float", "int | None", "float | None", "NDArray[Any]", "Array"}


def fields(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Class, name, annotation and docstring of each field of a dataclass."""
    for kind in ast.walk(ast.parse(source)):
        if isinstance(kind, ast.ClassDef) and any(
            "dataclass" in ast.unparse(by) for by in kind.decorator_list
        ):
            for field, after in zip(kind.body, [*kind.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    text = str(after.value.value) if is_text else ""
                    yield kind.name, field.target.id, ast.unparse(field.annotation), text


def without_unit(source: str) -> list[str]:
    """Fields of bytes or nanoseconds, by name or first word of the docstring, without it in their name."""
    found = []
    for kind, name, annotation, text in fields(source):
        first = text.split(" ")[0].rstrip(":")
        is_bytes = name in QUANTITIES or first == "Bytes"
        has_unit = "bytes" in name or "size" in name
        if annotation in NUMBERS and (
            (is_bytes and not has_unit) or (first == "Nanoseconds" and "_ns" not in name)
        ):
            found.append(f"{kind}.{name}")
    return found


@pytest.mark.parametrize(
    "path", sorted(ANALYSIS.rglob("*.py")), ids=lambda path: str(path.relative_to(ANALYSIS))
)
def test_a_number_of_bytes_is_named_so(path: Path) -> None:
    assert without_unit(path.read_text()) == []


def test_a_number_without_its_unit_is_found() -> None:
    source = """@dataclass
class A:
    beside: int
    '''Bytes of others.'''
    reserved: int
    n_bytes: int
"""

    assert without_unit(source) == ["A.beside", "A.reserved"]
