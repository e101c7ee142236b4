"""Run once more, alone, what failed in the last whole run: ``python scripts/again.py``.

pytest-xdist writes a test's group behind its name in the list of failures (``name@group``), where
``--last-failed`` does not look for it, and passes over it without a word.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(__file__).resolve().parents[1] / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main() -> int:
    """Run the failed tests in one process; returns pytest's exit status, 1 where nothing is on the list."""
    names = sorted(map(_without_group, json.loads(FAILED.read_text()))) if FAILED.exists() else []
    if not names:
        return 1
    print(f"{len(names)} failed and run once more, alone: one that passes only now has a defect of its own.")
    return subprocess.run([sys.executable, "-m", "pytest", *names], check=False).returncode


def _without_group(name: str) -> str:
    return name if name.endswith("]") else name.rpartition("@")[0] or name


if __name__ == "__main__":
    sys.exit(main())
