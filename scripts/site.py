"""Hooks of the site: README as its first page, the reference of the public names, and links out of ``docs/``.

The documents are written for the repository, where they link to its files. On the site these links lead to
the repository's address, and nothing else is changed.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are no file of ``docs/``."""
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    front = re.sub(r'(\]\(|="|srcset=")docs/', r"\1", front)
    files.append(File.generated(config, "index.md", content=front))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links that leave ``docs/`` to the repository."""
    base = f"{config.extra['repository']}/blob/main/"
    if page.file.src_uri == "index.md":
        return re.sub(r"\]\((?!https?:|#)(?=[A-Z]|sample_traces|benchmarks)", f"]({base}", markdown)
    return re.sub(r"\]\(\.\./", f"]({base}", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's dialog for a screen reader."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="search"')


def on_post_template(output_content: str, **_: Any) -> str:
    """Name it on the page of addresses that do not exist, too."""
    return on_post_page(output_content)


def reference() -> str:
    """The page of all public names, in the order of ``__all__``, each from where it is defined."""
    tree = ast.parse((ROOT / "vramscope" / "__init__.py").read_text(encoding="utf-8"))
    values = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("__all__", "_HOME")
    }
    names = [name for name in values["__all__"] if not name.startswith("_")]
    functions = [name for name in names if name[0].islower()]
    classes = [name for name in names if name[0].isupper() and not name.endswith("Error")]
    errors = [name for name in names if name.endswith("Error")]
    parts = [
        "# Reference from docstrings\n\n[Python API](api.md) has the same names by purpose, with examples."
    ]
    for title, chosen in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        parts += [f"## {title}", *(_entry(values["_HOME"][name], name) for name in chosen)]
    return "\n\n".join([*parts, questions()]) + "\n"


def _entry(module: str, name: str) -> str:
    return f"::: {module}.{name}\n    options:\n      heading: vramscope.{name}"


def questions() -> str:
    """The table of the methods that answer a question about a recording, from the stub and the analyses."""
    stub = ast.parse((ROOT / "vramscope" / "model" / "questions.pyi").read_text(encoding="utf-8"))
    (kind,) = (node for node in stub.body if isinstance(node, ast.ClassDef))
    asking = re.compile(r'^ANALYSIS = asking\(\s*"([^"]+)",\s*(\w+)', re.MULTILINE)
    asked = {
        name: question
        for path in (ROOT / "vramscope" / "analysis").rglob("*.py")
        for question, name in asking.findall(path.read_text(encoding="utf-8"))
    }
    rows = [
        f"| `{each.name}({ast.unparse(each.args).partition(', ')[2]})` | {asked.get(each.name, '')} "
        f"| `{ast.unparse(each.returns) if each.returns else ''}` |"
        for each in kind.body
        if isinstance(each, ast.FunctionDef)
    ]
    title = "## Questions to a `Recording`\n\nEach is a method; [Analyses](analyses.md) has the results.\n"
    return "\n".join([title, "| method | question | result |", "| --- | --- | --- |", *rows])
