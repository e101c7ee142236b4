"""The checks of what changed, in half a minute: form, types, generated files, and the tests nearest to it.

``python scripts/quick.py [FILE …]`` looks at the files, or at what git says has changed. Tests that import a
module run; where none does, those of what imports it, and of its package; for a file outside of the product
those that name it. Slow tests are left out, and all but a few files where many import the module.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("vramscope", "dashboard")
MOST_FILES = 8
"""Files of tests that run: those of the module's own folder and name first, then those that import least."""
NO_TESTS = 5
"""What pytest ends with where every test of the files is left out."""
LEFT_OUT = "not slow and not browser and not standin and not gpu"


def main() -> int:
    """Run the checks; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    files = parser.parse_args().files or changed_files()
    paths = sorted({path.resolve().relative_to(ROOT) for path in files})
    if not paths:
        print("nothing has changed")
        return 0
    checks = [subprocess.Popen(command, cwd=ROOT) for command in check_commands(paths)]
    codes = [run_tests(paths), *(check.wait() for check in checks)]
    return int(any(codes))


def changed_files() -> list[Path]:
    """Return the files that are not as in the last commit, new ones included, deleted ones not."""
    asked = ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames", "-z"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [ROOT / entry[3:] for entry in shown.stdout.split("\0") if entry]
    return [path for path in found if path.is_file()]


def check_commands(paths: Iterable[Path]) -> list[list[str]]:
    """Return the commands that look at form, types and generated files."""
    scripts = Path(sys.executable).parent
    python = [str(path) for path in paths if path.suffix == ".py" and (ROOT / path).exists()]
    form = [
        [str(scripts / "ruff"), *words, *python] for words in (("check", "-q"), ("format", "-q", "--check"))
    ]
    return [
        *(form if python else []),
        [str(scripts / "mypy"), "--no-error-summary"],
        [sys.executable, "scripts/generate_questions.py", "--check"],
    ]


def run_tests(paths: Iterable[Path]) -> int:
    """Run the tests that are nearest to the files; return what pytest ended with."""
    chosen = nearest_tests(paths)
    n_run, n_left = len(chosen[:MOST_FILES]), len(chosen[MOST_FILES:])
    print(f"{n_run} files of tests, and {n_left} farther ones left out", flush=True)
    if not chosen:
        return 0
    # Sorted: pytest 9.1 loses the conftest of a folder whose files are given apart (pytest #14635).
    named = sorted(str(path) for path in chosen[:MOST_FILES])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", LEFT_OUT, *named]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if code == NO_TESTS else code


def nearest_tests(paths: Iterable[Path]) -> list[Path]:
    """Return the test files to run, the nearest first."""
    tests = {path: imports(path) for path in _python("tests") if path.name.startswith("test_")}
    found: dict[Path, tuple[bool | int, ...]] = {}
    for path in paths:
        if path in tests:
            found[path] = ()
        elif path.suffix == ".py" and path.parts[0] in PRODUCT:
            for test in tests_of_module(path, tests):
                found[test] = min(found.get(test, (True,)), distance(test, path, len(tests[test])))
        else:
            found |= {test: (True,) for test in tests if test not in found and _names(test, path)}
    return sorted(found, key=lambda test: (found[test], test))


def tests_of_module(path: Path, tests: Mapping[Path, frozenset[str]]) -> set[Path]:
    """Return the tests that import a module, or what is nearest above it, and those that have its name."""
    name = name_of(path)
    called = {test for test in tests if test.stem in (f"test_{path.stem}", f"test_{path.stem}_command")}
    seen, level = {name}, {name}
    while level:
        if found := {test for test, names in tests.items() if level & names}:
            return found | called
        # A folder whose parts are found and not listed imports them by their names.
        level = {module for module, names in product().items() if level & names} or {
            module.rpartition(".")[0] for module in level
        }
        level -= seen | {""}
        seen |= level
    return called


def distance(test: Path, path: Path, n_imports: int) -> tuple[bool | int, ...]:
    """Return how far a test is: another name than the file, not in tests/unit, other folder, more imports."""
    folder = path.parts[1] if path.parts[0] == "vramscope" else path.parts[0]
    is_other = test.parts[2] not in (folder, f"test_{path.stem}.py")
    is_named = test.stem.startswith(f"test_{path.stem}")
    return (False, not is_named, test.parts[1] != "unit", is_other, n_imports)


def _names(test: Path, path: Path) -> bool:
    """Whether a test names a file that is no module of the product; a conftest is named by its folder."""
    if path.name == "conftest.py":
        return path.parent in test.parents
    text = (ROOT / test).read_text(encoding="utf-8")
    return path.name in text or re.search(rf"^(from|import) {path.stem}\b", text, re.MULTILINE) is not None


@cache
def product() -> dict[str, frozenset[str]]:
    """Return what each module of the product imports, by its name."""
    return {name_of(path): imports(path) for folder in PRODUCT for path in _python(folder)}


def _python(folder: str) -> Iterator[Path]:
    return (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the dotted name of a file; the dashboard is installed below vramscope."""
    parts = path.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("vramscope", *parts) if parts[0] == "dashboard" else parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules of the product that a file imports, also late, relative or by a string."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(name for name in found if name.startswith("vramscope"))


if __name__ == "__main__":
    sys.exit(main())
