"""The code of a notebook, cell by cell, as Python that runs without Jupyter."""

import json
from collections.abc import Iterator
from types import CodeType
from typing import Any

_WITHOUT_CODE = (
    "%%bash", "%%sh", "%%html", "%%javascript", "%%js", "%%latex", "%%markdown", "%%writefile", "%%!",
)  # fmt: skip
"""Cells of these hold no Python."""


def codes(path: str, data: bytes) -> list[CodeType]:
    """Compile the code cells in their order; a frame names its cell: ``train.ipynb, cell 3``.

    Lines for Jupyter alone (``%matplotlib``, ``!pip``, ``?help``) are left out.

    Raises ValueError for what is no notebook, SyntaxError for a cell that is no Python.
    """
    try:
        book = json.loads(data)
    except RecursionError:
        raise ValueError("brackets within brackets without an end") from None
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        raise ValueError("a notebook has cells, and this has none")
    return [
        compile(source, f"{path}, cell {number}", "exec", dont_inherit=True)
        for number, source in enumerate(_sources(cells), 1)
    ]


def _sources(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        given = cell.get("source", "")
        text = given if isinstance(given, str) else "".join(map(str, given))
        yield "" if text.lstrip().startswith(_WITHOUT_CODE) else "\n".join(map(_python, text.split("\n")))


def _python(line: str) -> str:
    bare = line.lstrip()
    is_jupyter = bare.startswith(("%", "!", "?")) or bare.endswith("?")
    return f"{line[: len(line) - len(bare)]}pass" if is_jupyter else line
