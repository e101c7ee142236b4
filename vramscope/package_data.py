"""Reads the tables that lie beside the code: a row a line, its cells parted by tabs."""

from importlib.machinery import SourceFileLoader
from pathlib import Path


def rows(module: str, name: str, kind: str = "") -> list[list[str]]:
    """Return the rows of the table *name* beside the file *module*; empty lines and ``#`` lines are none.

    With *kind* only those whose first cell it is, without that cell.
    """
    # As Python reads a module, not by open(): in its place may be a function of the program.
    lines = SourceFileLoader(name, "").get_data(str(Path(module).with_name(name))).decode().splitlines()
    cells = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [row[1:] for row in cells if row[0] == kind] if kind else cells


def words(module: str, name: str, kind: str) -> dict[str, str]:
    """Return the rows of a *kind* as words by their key."""
    return {key: text for key, text, *_ in rows(module, name, kind)}
