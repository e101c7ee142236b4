"""Writes the names of torch's and Python's own files and functions that a redacted export keeps.

    python scripts/public_names.py SITE_PACKAGES_OR_STDLIB…

Each argument is the folder of one version; what any of them has is public. Names are stored as digests of
five bytes: a name of somebody's program is taken for one of them once in 10 million.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from vramscope.analysis.categories import by_stack
from vramscope.export.redaction import FILE, digest

_TORCH = ("torch", "torchgen", "functorch", "triton")
# Of no training: tests, and what torch and Python generate code or interfaces with.
_LEFT_OUT = re.compile(
    r"(?:^|/)(?:torch/(?:testing|onnx|_vendor|_numpy|ao|_inductor/(?:codegen|fx_passes|kernel))|tests?|idlelib"
    r"|lib2to3|tkinter|turtledemo|distutils|ensurepip|site-packages|pydoc_data)/"
)
_WORKSPACES = (
    "at cuda blas getNewWorkspace parseChosenWorkspaceSize getChosenWorkspaceSize getCUDABlasLtWorkspace"
)
_CPP = (
    "bool char const double float int long short signed unsigned void auto operator std lambda anonymous "
    "namespace clone clone3 cold libc_start_main start_thread function string vector tuple optional c10 Half "
    "BFloat16 Tensor SymInt shared_ptr unique_ptr"
)


def python_names(root: Path, folders: tuple[str, ...], prefix: str) -> Iterator[str]:
    """The files below *folders* of *root*, their folders, and ``file:function`` for each function."""
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            name = prefix + file.relative_to(root).as_posix()
            if _LEFT_OUT.search(name):
                continue
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError):
                continue
            yield from (name, name.rpartition("/")[0])
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield f"{name}:{node.name}"


def native_words(library: Path, names: str = "", *, also_hidden: bool = False) -> Iterator[str]:
    """The words of the C and C++ names of a library that match *names*."""
    command = [shutil.which("nm") or "nm", "-C" if also_hidden else "-DC", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        name = line.split(" ", 2)[-1].partition("(")[0]
        if re.search(names, name):
            yield from re.findall(r"[A-Za-z_]\w*", name)


def header_words(include: Path) -> Iterator[str]:
    """The functions that torch's headers declare: templates of them are in no library."""
    for folder in ("ATen", "ATen/core", "c10/core", "c10/cuda", "torch/csrc/autograd"):
        for file in (include / folder).glob("*.h"):
            yield from re.findall(r"([A-Za-z_]\w*)\s*\(", file.read_text(errors="replace"))


def torch_words() -> Iterator[str]:
    """The operators and the nodes of the installed torch."""
    import torch

    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(("aten::", "prim::", "c10d::")):
            yield from re.split(r"::|\.", name)
    yield from (name for name in dir(torch._C._functions) if not name.startswith("__"))
    # A class for each derivative is registered where it is first used; its name follows from the operator's.
    for name in {full.split("::")[1].split(".")[0] for full in torch._C._dispatch_get_all_op_names()}:
        words = "".join(part[:1].upper() + part[1:] for part in name.strip("_").split("_"))
        yield from (f"{words}Backward{number}" for number in range(4))


def main() -> None:
    """Write the file."""
    names: set[str] = set()
    for place in map(Path, sys.argv[1:]):
        is_stdlib = (place / "json" / "decoder.py").exists()
        names.update(python_names(place, (".",) if is_stdlib else _TORCH, "lib/" if is_stdlib else ""))
        for library in ("libc10.so", "libc10_cuda.so", "libtorch_python.so"):
            names.update(f"word:{word}" for word in native_words(place / "torch" / "lib" / library))
        operators = r"^(?:at|c10|torch)::(?:\w+::){0,2}\w+$"
        names.update(f"word:{word}" for word in native_words(place / "torch/lib/libtorch_cpu.so", operators))
        names.update(f"word:{word}" for word in header_words(place / "torch" / "include"))
    for python in (Path(sys.executable).resolve(), *Path(sys.base_prefix, "lib").glob("libpython3*.so*")):
        names.update(f"word:{word}" for word in native_words(python, "^_?Py|^_?py", also_hidden=True))
    names.update(f"word:{word}" for word in (*torch_words(), *_CPP.split(), *_WORKSPACES.split()))
    named = [function for _, functions, _ in by_stack._MEANT for function in functions]
    names.update(f"function:{name}" for name in (*named, *by_stack._FOR_ITS_CALLER))
    FILE.write_bytes(b"".join(sorted(map(digest, names))))
    print(f"{len(names):,} names, {FILE.stat().st_size:,} bytes: {FILE}")


if __name__ == "__main__":
    main()
