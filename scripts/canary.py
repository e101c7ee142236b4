"""What of the newest torch differs from the checked one: private functions, snapshots, counters, in one page.

``python scripts/canary.py`` takes the newest torch of the package index, builds the stand-in for it, asks it
what recording needs, and compares the answers with those of the newest version that is checked. Exit code 3
says that something differs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments import ROOT, done

BUILD = ROOT / "tests" / "standin" / "build.py"
PROBE = ROOT / "scripts" / "canary_probe.py"
DIFFERS = 3
TITLES = {
    "private": "Private functions of torch._C, and what they take",
    "functions": "Functions of torch.cuda.memory, and what they take",
    "fields": "Fields of a snapshot",
    "actions": "Actions of its events",
    "counters": "Counters of memory_stats",
    "settings": "Allocator settings in a snapshot",
}


def main() -> int:
    """Print the page; return 3 where the newest torch differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="this version instead of the newest one of the index")
    parser.add_argument("--checked", help="compare with this version (default: the newest that is checked)")
    asked = parser.parse_args()
    newest, checked = asked.torch or newest_torch(), asked.checked or checked_torches()[-1]
    lines = list(page(newest, checked, answers(checked), answers(newest)))
    print("\n".join(lines))
    return DIFFERS if any(line.startswith(("+", "-")) for line in lines) else 0


def newest_torch() -> str:
    """Return the newest version of torch that the index has for this Python."""
    with tempfile.TemporaryDirectory() as folder:
        # The platform skips a build like 2.13.0+cpu that lies at hand.
        places = ("--platform", "manylinux_2_28_x86_64", "--implementation", "cp", "--only-binary=:all:")
        said = ("--dry-run", "--quiet", "--report", "-", "--target", folder)
        plan = done(sys.executable, "-m", "pip", "install", *said, *places, "--no-deps", "torch").stdout
    version: str = json.loads(plan)["install"][0]["metadata"]["version"]
    return version.partition("+")[0]


def checked_torches() -> tuple[str, ...]:
    """Return the versions with which recording is checked, as the code states them, oldest first."""
    from vramscope.capture.torch_versions.private_functions import CHECKED

    return CHECKED


def answers(version: str) -> dict[str, dict[str, str]]:
    """Return what one torch says about itself, over its stand-in."""
    launcher = done(sys.executable, BUILD, "--torch", version).stdout.strip().splitlines()[-1]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        done(launcher, PROBE, answer)
        said: dict[str, dict[str, str]] = json.loads(answer.read_text())
    return said


def page(newest: str, checked: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the page: for each kind what is gone (-) and what is new (+)."""
    yield f"torch {newest} beside {checked}, which is checked"
    for kind, title in TITLES.items():
        lines = list(differences(before[kind], now[kind]))
        yield ""
        yield f"{title}: {'these differ' if lines else 'the same'}"
        yield from lines


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a dictionary that are gone, with a minus, and those that are new, with a plus."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            for sign, side in (("-", before), ("+", now)):
                if name in side:
                    yield f"{sign} {name} {side[name]}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
