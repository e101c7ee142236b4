"""Measures of the code's structure, and the bounds that ``make check`` holds them to.

``python scripts/structure.py`` prints one line per measure and exits with 1 if a bound is broken; ``--list``
names every place. The exceptions stand in ``pyproject.toml`` under ``[tool.vramscope.structure]``, each with
its reason; an exception that nothing needs any more is an error too.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vramscope", "dashboard")
FORBIDDEN_BEGINNINGS = ("of", "by", "as", "with", "those")
FEWEST_WORDS = 4


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, its tree, and the modules that it imports."""

    name: str
    path: Path
    tree: ast.Module
    is_package: bool
    n_lines: int = 0


@dataclass
class Measure:
    """One measure: the places that count, and the most that are allowed."""

    title: str
    places: list[str]
    allowed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether no more places count than allowed, and no exception is stale."""
        return len(self.places) <= self.allowed and not self.notes


def main() -> int:
    """Print every measure; return 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name every place that counts")
    listed = parser.parse_args().list
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    rules, contracts = tools["vramscope"]["structure"], tools["importlinter"]["contracts"]
    modules = read_modules()
    measures = [
        circles(modules, rules["late"]),
        upward_arrows(modules, contracts[0]["layers"], rules["late"]),
        deferred_arrows(modules, rules["deferred"]),
        crowded_folders(rules["crowded"]),
        foreign_helpers(modules),
        doubled_classes(modules, rules["doubled"]),
        long_files(modules, rules["long"]),
        large_classes(modules, rules["large"]),
        lines_over(modules, rules["most_lines"]),
        *docstrings(modules),
    ]
    for measure in measures:
        print(f"{'ok  ' if measure.holds else 'FAIL'}  {measure.title}: {len(measure.places)}", end="")
        print(f" (at most {measure.allowed})" if measure.allowed else "")
        if listed or not measure.holds:
            for place in [*measure.places, *measure.notes]:
                print(f"        {place}")
    for line in figures(modules):
        print(f"      {line}")
    return 0 if all(measure.holds for measure in measures) else 1


def read_modules() -> dict[str, Module]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text()
            found[name] = Module(name, path, ast.parse(text), is_package, len(text.splitlines()))
    return found


def circles(modules: dict[str, Module], listed: dict[str, str]) -> Measure:
    """Groups of modules that import one another, late imports included; *listed*: "a -> b" → reason."""
    graph = {name: set(imported(module, modules)) - {name} for name, module in modules.items()}
    stale = []
    for arrow in listed:
        start, end = arrow.split(" -> ")
        if end not in graph[start]:
            stale.append(f"stale exception: {arrow}")
        graph[start].discard(end)
    groups = [sorted(group) for group in components(graph) if len(group) > 1]
    return Measure("import circles", [" ↔ ".join(group) for group in groups], notes=stale)


def imported(module: Module, modules: dict[str, Module], *, late: bool | None = None) -> Iterator[str]:
    """The modules of both packages that *module* imports.

    *late* selects the imports inside functions (True), those outside (False) or all (None).
    """
    for node, is_late in imports(module.tree):
        if late is None or late == is_late:
            yield from targets(node, module, modules)


def imports(tree: ast.AST, is_late: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Import statements below *tree* that run, and whether they run late; blocks for type checkers do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, is_late
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        else:
            yield from imports(node, is_late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def targets(node: ast.stmt, module: Module, modules: dict[str, Module]) -> Iterator[str]:
    """The modules of both packages that one import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = absolute(node, module)
        names = [
            f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names
        ]
    for name in names:
        ours = name.removeprefix("vramscope.") if name.startswith("vramscope.dashboard") else name
        if ours in modules:
            yield ours


def absolute(node: ast.ImportFrom, module: Module) -> str:
    """The dotted name that a ``from`` import starts at."""
    name = node.module or ""
    if not node.level:
        return name.removeprefix("vramscope.") if name.startswith("vramscope.dashboard") else name
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*kept, *([name] if name else [])])


def components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            place = stack.index(name)
            found.append(set(stack[place:]))
            del stack[place:]

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in order:
            visit(name)
    return found


def upward_arrows(modules: dict[str, Module], layers: list[str], listed: dict[str, str]) -> Measure:
    """Imports that go up or to a sibling, late ones included; *layers*: highest first, as in the contract."""
    level = {part: number for number, layer in enumerate(layers) for part in re.findall(r"\w+", layer)}
    places = []
    for name, module in modules.items():
        package, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        if package != "vramscope" or not part:
            continue
        if part not in level:
            places.append(f"{name} stands in no layer")
            continue
        for other in sorted(set(imported(module, modules))):
            into, _, below = other.partition(".")
            target = below.partition(".")[0]
            if into != "vramscope" or target in ("", part) or f"{name} -> {other}" in listed:
                continue
            is_sibling = level.get(target) == level[part] and "|" in layers[level[part]]
            if is_sibling or level.get(target, -1) < level[part]:
                places.append(f"{name} -> {other}")
    return Measure("imports upwards", places)


def deferred_arrows(modules: dict[str, Module], allowed: dict[str, str]) -> Measure:
    """Imports by a string, which the contracts cannot see; *allowed*: module → reason."""
    places, used = [], set()
    for name, module in modules.items():
        for node in ast.walk(module.tree):
            is_call = isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
            if is_call and name in allowed:
                used.add(name)
            elif is_call:
                places.append(f"{place(module, node)} {ast.unparse(node)}")
    stale = [f"stale exception: {name} imports nothing by a string" for name in set(allowed) - used]
    return Measure("imports by a string", places, notes=stale)


def crowded_folders(exceptions: dict[str, str], most: int = 15) -> Measure:
    """Folders of the packages with more than *most* entries; *exceptions*: folder → reason.

    A module and the table or stub that has its name are one entry.
    """
    places, crowded = [], set()
    for package in PACKAGES:
        folders = [ROOT / package, *(path for path in (ROOT / package).rglob("*") if path.is_dir())]
        for folder in folders:
            name = str(folder.relative_to(ROOT))
            entries = {entry.stem for entry in folder.iterdir() if entry.name != "__pycache__"}
            if len(entries) > most and "__pycache__" not in name:
                crowded.add(name)
                if name not in exceptions:
                    places.append(f"{name}: {len(entries)} entries")
    stale = [f"stale exception: {name} has at most {most} entries" for name in set(exceptions) - crowded]
    return Measure(f"folders above {most} entries", places, notes=stale)


def foreign_helpers(modules: dict[str, Module]) -> Measure:
    """Modules with a leading underscore that are imported from outside of their package."""
    places = []
    for name, module in modules.items():
        for other in set(imported(module, modules)):
            parts = other.split(".")
            private = next((index for index, part in enumerate(parts) if part.startswith("_")), None)
            if private is None or other == "vramscope._version":
                continue
            home = ".".join(parts[:private])
            if not (name == home or name.startswith(f"{home}.")):
                places.append(f"{name} imports {other}")
    return Measure("helpers imported from outside of their package", places)


def doubled_classes(modules: dict[str, Module], explained: dict[str, str], most: int = 3) -> Measure:
    """Names of classes that are defined more than once, leading underscores aside."""
    homes = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(place(module, node))
    doubled = {name: where for name, where in homes.items() if len(where) > 1}
    places = [f"{name}: {', '.join(where)}" for name, where in sorted(doubled.items())]
    notes = [f"no reason given for {name}" for name in set(doubled) - set(explained)]
    notes += [f"stale exception: {name} is defined once" for name in set(explained) - set(doubled)]
    return Measure("class names defined more than once", places, most, notes)


def long_files(modules: dict[str, Module], exceptions: dict[str, str], most: int = 450) -> Measure:
    """Files of more than *most* lines; *exceptions*: path → reason."""
    sizes = {str(module.path.relative_to(ROOT)): module.n_lines for module in modules.values()}
    long = {path for path, size in sizes.items() if size > most}
    places = [f"{path}: {sizes[path]} lines" for path in sorted(long - set(exceptions))]
    stale = [f"stale exception: {path} has at most {most} lines" for path in set(exceptions) - long]
    return Measure(f"files above {most} lines", places, notes=stale)


def large_classes(modules: dict[str, Module], exceptions: dict[str, str], most: int = 25) -> Measure:
    """Classes of more than *most* methods, properties included; *exceptions*: name → reason."""
    large = {
        node.name: f"{place(module, node)}: {n_methods(node)} methods"
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and n_methods(node) > most
    }
    places = [where for name, where in sorted(large.items()) if name not in exceptions]
    stale = [f"stale exception: {name} has at most {most} methods" for name in set(exceptions) - set(large)]
    return Measure(f"classes above {most} methods", places, notes=stale)


def n_methods(node: ast.ClassDef) -> int:
    """The functions that a class defines, each overload of one included."""
    return sum(isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) for inner in node.body)


def lines_over(modules: dict[str, Module], most: int) -> Measure:
    """The lines of both packages, where they are more than *most*."""
    total = sum(module.n_lines for module in modules.values())
    return Measure(f"budget of {most:,} lines exceeded", [f"{total:,} lines"] if total > most else [])


def docstrings(modules: dict[str, Module]) -> list[Measure]:
    """Public names without a docstring; forbidden beginnings; docstrings that are too short."""
    missing, beginnings, short = [], [], []
    for module in modules.values():
        for node, is_public in defined(module.tree):
            text = ast.get_docstring(node)
            where = f"{module.path.relative_to(ROOT)}" if node is module.tree else place(module, node)
            if text is None:
                if is_public:
                    missing.append(where)
                continue
            words = text.split()
            if words and words[0].lower().rstrip(",:") in FORBIDDEN_BEGINNINGS:
                beginnings.append(f"{where} {text.splitlines()[0]}")
            if is_public and len(text.splitlines()[0].split()) < FEWEST_WORDS:
                short.append(f"{where} {text.splitlines()[0]}")
    return [
        Measure("public names without a docstring", missing),
        Measure(f"docstrings that begin with {'/'.join(FORBIDDEN_BEGINNINGS)}", beginnings),
        Measure(f"public docstrings of fewer than {FEWEST_WORDS} words", short),
    ]


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def defined(tree: ast.Module) -> Iterator[tuple[Documented, bool]]:
    """The module, its classes, functions and methods, each with whether users see it."""
    yield tree, True
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_public = not node.name.startswith("_")
        yield node, is_public
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield inner, is_public and not inner.name.startswith("_") and not is_overload(inner)


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether this is a setter or an overload, which another definition documents."""
    return any(ast.unparse(mark).endswith((".setter", "overload")) for mark in node.decorator_list)


def place(module: Module, node: ast.AST) -> str:
    """Where *node* stands: ``file:line name``."""
    name = getattr(node, "name", "")
    return f"{module.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name}".rstrip()


def figures(modules: dict[str, Module]) -> list[str]:
    """Sizes and densities next to those of pyinstrument, memray and harlequin (read in 2026-11)."""
    lines = [module.path.read_text().splitlines() for module in modules.values()]
    sizes = sorted(map(len, lines))
    total = sum(sizes)
    comments = sum(line.lstrip().startswith("#") for text in lines for line in text)
    documented = sum(
        len((ast.get_docstring(node, clean=False) or "").splitlines())
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    )
    median, p90 = sizes[len(sizes) // 2], sizes[len(sizes) * 9 // 10]
    ours = f"files {len(sizes)}, lines {total}; per file median {median}, p90 {p90}, most {sizes[-1]}"
    density = f"comment lines {comments / total:.1%}, docstring lines {documented / total:.1%}"
    return [
        f"{ours}  (pyinstrument 116, 425, 684; memray 74, 359, 815; harlequin 140, 532, 1442)",
        f"{density}  (pyinstrument 5.6 %, 14.2 %; memray 1.4 %, 2.6 %; harlequin 3.1 %, 13.4 %)",
    ]


if __name__ == "__main__":
    sys.exit(main())
