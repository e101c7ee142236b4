"""The peaks of tests in a file that is committed with them."""

import fcntl
import json
from pathlib import Path
from typing import Any

from vramscope.errors import FormatError

_SCHEMA = 1


def known_peak(file: Path, test: str, source: str) -> int | None:
    """The committed peak of a test in bytes, on CUDA or the simulated device; None where there is none.

    Raises FormatError if the file is no baseline.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    peak = _tests(file, text).get(test, {}).get(source)
    return None if peak is None else int(peak)


def keep_peak(file: Path, test: str, source: str, n_bytes: int) -> None:
    """Write the peak of a test into the file; tests of several workers may do so at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        tests = _tests(file, opened.read())
        tests.setdefault(test, {})[source] = n_bytes
        opened.truncate(0)
        opened.write(json.dumps({"schema": _SCHEMA, "tests": tests}, indent=2, sort_keys=True) + "\n")


def _tests(file: Path, text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        content = json.loads(text)
        if content["schema"] != _SCHEMA:
            raise FormatError(
                f"{file}: a baseline of schema {content['schema']}: this version reads {_SCHEMA}"
            )
        return dict(content["tests"])
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"{file}: no baseline; delete it, and write it again with --vram-update") from None
