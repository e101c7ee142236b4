"""Build the stand-in: a CUDA build of PyTorch that runs on a machine without a GPU.

``python build.py [--torch 2.13.0] [--to DIR]`` makes a launcher, ``DIR/<torch version>/python``:
the Python that ran this script, with the CUDA build of torch first on its path and stand-ins for NVIDIA's
libraries to load. It costs one download of about half a gigabyte and one gigabyte of disk, once; after that
only what changed is built again. Several may build at the same time: one does, the others wait.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT_TORCH = "2.13.0"
DEFAULT_TO = HERE.parents[1] / ".cache" / "standin"
SOURCES = ("build.py", "board.h", "board.c", "runtime.c", "libraries.c", "nvml.c")
DISK_NEEDED = 3 << 30
"""Bytes: the wheel and what is in it, for a moment both."""

HEADERS = {
    "12": ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-crt==13.5.37"),
    "13": ("nvidia-cuda-runtime==13.5.37", "nvidia-cuda-crt==13.5.37"),
}
"""Packages with the headers of each major version of CUDA."""

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")

DRIVER = "libcuda.so.1"
DRIVER_FUNCTIONS = (
    "cuMemAddressFree",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemsetD32Async",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuStreamWriteValue32",
    "cuStreamWriteValue32_v2",
)
"""What torch before 2.9 looks up in the driver by name, as no link shows."""

NOT_UNPACKED = ("torch/include/", "torch/test/")
HEADER = "torch/include/ATen/autocast_mode.h"
"""What a dry run reads: the one header that is unpacked."""

NVIDIA = re.compile(
    r"lib(?:cud|cublas|cusp|cufft|cufile|nccl|curand|nvrtc|cusolver|cupti|nvshmem|nvJitLink|nvToolsExt|cuda)"
)

PREFIXES = (
    ("cublasLt", "libcublasLt"),
    ("cublas", "libcublas"),
    ("cudnn", "libcudnn"),
    ("cusparseLt", "libcusparseLt"),
    ("cusparse", "libcusparse"),
    ("cusolver", "libcusolver"),
    ("cufft", "libcufft"),
    ("curand", "libcurand"),
    ("nccl", "libnccl"),
    ("nvrtc", "libnvrtc"),
    ("cuFile", "libcufile"),
    ("nvshmem", "libnvshmem_host"),
    ("cupti", "libcupti"),
    ("nvtx", "libnvToolsExt"),
    ("__cuda", "libcudart"),
    ("cuda", "libcudart"),
)
"""Which library a function without a symbol version belongs to; the longer prefix first."""

SYSTEM_VERSION = re.compile(r"GLIBC|GLIBCXX|GCC|CXXABI|GOMP|OMP|LIBC")

TRY_OUT = """
import torch
torch.empty(1 << 20, device="cuda")
print("torch", torch.__version__, "sees", torch.cuda.get_device_name())
"""

Symbols = dict[str, dict[str, str]]
"""Library file name → function → symbol version ("" for none)."""


class BuildError(Exception):
    """Something is missing or failed; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the stand-in for a GPU that the tests use.")
    parser.add_argument("--torch", default=DEFAULT_TORCH, help="version of torch (default: %(default)s)")
    parser.add_argument("--to", type=Path, default=DEFAULT_TO, help="folder for it (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    try:
        print(build(chosen.torch, chosen.to.resolve()))
    except BuildError as error:
        print(f"stand-in: {error}", file=sys.stderr)
        return 1
    return 0


def build(version: str, to: Path) -> Path:
    """The launcher of torch *version* below *to*, built if it is not there or out of date."""
    check_machine()
    place = to / version
    place.mkdir(parents=True, exist_ok=True)
    with locked(to / ".lock"):
        stamp = current_stamp(version)
        if read(place / "stamp.json") != stamp:
            (place / "stamp.json").unlink(missing_ok=True)
            fetch_torch(version, to)
            symbols = wanted_symbols(place / "packages" / "torch")
            build_libraries(symbols, fetch_headers(cuda_major(symbols), to), place)
            write_launcher(place)
            try_out(place / "python")
            replace(place / "stamp.json", stamp)
    return place / "python"


def check_machine() -> None:
    """The machine has what it takes."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BuildError(f"it needs Linux on x86_64; this is {platform.system()} on {platform.machine()}")
    missing = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
    if missing:
        raise BuildError(f"{', '.join(missing)} not found; install gcc and binutils")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock of one that dies is free."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def current_stamp(version: str) -> str:
    """Everything the result depends on; what was built with another stamp is out of date."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    facts = {
        "torch": version,
        "python": sys.executable,
        "version": platform.python_version(),
        "here": str(HERE),
        "sources": digest.hexdigest(),
    }
    return json.dumps(facts, indent=1)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file in one go: it is never seen half written."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)


# What has to be fetched


def fetch_torch(version: str, to: Path) -> None:
    """Unpack the CUDA wheel of torch *version*, unless it is there."""
    packages = to / version / "packages"
    if (packages / HEADER).exists():
        return
    shutil.rmtree(packages, ignore_errors=True)  # of a build without the header
    if shutil.disk_usage(to).free < DISK_NEEDED:
        raise BuildError(f"{to} has less than {DISK_NEEDED >> 30} GiB free; make room or choose --to")
    print(f"stand-in: fetching torch {version} for CUDA, about 0.5 GB", file=sys.stderr)
    # "===" and the platform skip a build like 2.13.0+cpu of the same version.
    fetch([f"torch==={version}"], packages, to)


def fetch_headers(major: str, to: Path) -> list[Path]:
    """The folders with the headers of CUDA *major*."""
    headers = to / f"headers-{major}"
    if not headers.exists():
        fetch(HEADERS[major], headers, to)
    found = [next(headers.rglob(name)).parent for name in ("cuda_runtime_api.h", "crt/host_defines.h")]
    return [found[0], found[1].parent]


def fetch(requirements: Sequence[str], folder: Path, to: Path) -> None:
    """Download wheels and unpack them into *folder*, which appears when it is complete."""
    wheels = to / "wheels"
    download(requirements, wheels)
    with tempfile.TemporaryDirectory(dir=to, prefix="unpacking-") as partial:
        for wheel in wheels.glob("*.whl"):
            unpack(wheel, Path(partial) / "content")
        (Path(partial) / "content").replace(folder)
    shutil.rmtree(wheels)


def download(requirements: Sequence[str], wheels: Path) -> None:
    shutil.rmtree(wheels, ignore_errors=True)  # left by a build that was interrupted
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", version, "--dest", str(wheels)]
    command += [part for name in PLATFORMS for part in ("--platform", name)]
    # A machine's constraints are for what is installed there; this wheel is only unpacked.
    unconstrained = os.environ | {"PIP_CONSTRAINT": os.devnull}
    asked = [*command, *requirements]
    result = subprocess.run(asked, capture_output=True, text=True, check=False, env=unconstrained)
    if result.returncode:
        raise BuildError(
            f"pip could not fetch {' '.join(requirements)} for Python {version}:\n{result.stderr.strip()}\n"
            "Is there a network, and has this version of torch a wheel for this Python?"
        )


def unpack(wheel: Path, folder: Path) -> None:
    """Everything of a wheel but what only compilers and torch's own tests need."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename == HEADER or not member.filename.startswith(NOT_UNPACKED):
                unpacked = Path(archive.extract(member, folder))
                mode = member.external_attr >> 16 & 0o777
                if mode and unpacked.is_file():
                    unpacked.chmod(mode | 0o600)


# What has to be built


def wanted_symbols(torch: Path) -> Symbols:
    """What torch's libraries ask of NVIDIA's."""
    files = [*torch.glob("lib/*.so*"), *torch.glob("_C*.so")]
    libraries = {name for file in files for name in needed_libraries(file)}
    symbols: Symbols = {name: {} for name in libraries}
    symbols[DRIVER] = dict.fromkeys(DRIVER_FUNCTIONS, "")
    for file in files:
        for function, version in undefined_functions(file):
            library = library_of(function, version, libraries)
            if library:
                symbols.setdefault(library, {}).setdefault(function, version)
    return symbols


def needed_libraries(file: Path) -> list[str]:
    """NVIDIA's libraries that a library is linked with."""
    names = re.findall(r"NEEDED.*\[([^\]]+)\]", output_of("readelf", "-d", file))
    return [name for name in names if NVIDIA.match(name)]


def undefined_functions(file: Path) -> list[tuple[str, str]]:
    """(function, symbol version or "") of everything a library takes from others, but from the system."""
    found = re.findall(r"^\s+U ([^@\s]+)(?:@+(\S+))?$", output_of("nm", "-D", file), re.MULTILINE)
    return [(function, version) for function, version in found if not SYSTEM_VERSION.match(version)]


def library_of(function: str, version: str, libraries: set[str]) -> str | None:
    """The file name of the library that *function* belongs to; None if it is none of NVIDIA's."""
    by_prefix = (stem for prefix, stem in PREFIXES if function.startswith(prefix))
    for wanted in (stem_of(version), next(by_prefix, "")):
        for library in libraries:
            if stem_of(library) == wanted:
                return library
    return DRIVER if re.match(r"cu[A-Z]", function) else None


def stem_of(library: str) -> str:
    """``libcudart`` of ``libcudart.so.13``."""
    return library.partition(".so")[0]


def cuda_major(symbols: Symbols) -> str:
    """ "12" or "13", by the runtime that torch is linked with."""
    runtimes = [re.fullmatch(r"libcudart\.so\.(\d+).*", name) for name in symbols]
    majors = [match.group(1) for match in runtimes if match]
    if not majors or majors[0] not in HEADERS:
        raise BuildError(f"this torch is not built for CUDA {' or '.join(HEADERS)}; choose another --torch")
    return majors[0]


def build_libraries(symbols: Symbols, include: Sequence[Path], place: Path) -> None:
    """All stand-ins, in ``lib/``; a folder that was there is replaced as a whole."""
    with tempfile.TemporaryDirectory(dir=place, prefix="building-") as partial:
        lib, old = Path(partial) / "lib", Path(partial) / "old"
        lib.mkdir()
        link("libstandin.so", lib, [HERE / "board.c", "-lpthread"])
        link("libnvidia-ml.so.1", lib, [HERE / "nvml.c", *against_board(lib)])
        for library, functions in sorted(symbols.items()):
            if library != DRIVER:
                build_library(library, functions, include, lib)
        build_driver(symbols[DRIVER], lib)
        if (place / "lib").exists():
            (place / "lib").replace(old)
        lib.replace(place / "lib")


def build_library(library: str, functions: dict[str, str], include: Sequence[Path], lib: Path) -> None:
    """One of NVIDIA's libraries: what is written by hand, and a function that returns 0 for all else."""
    stem = stem_of(library)
    source = HERE / ("runtime.c" if stem == "libcudart" else "libraries.c")
    written = lib.parent / f"{stem}.o"
    macro = f"-DLIB_{stem.removeprefix('lib')}"
    compile_c(["-c", source, "-o", written, macro, *[f"-I{folder}" for folder in include]])
    rest = lib.parent / f"{stem}.c"
    rest.write_text(stubs(set(functions) - defined_functions(written)))
    parts: list[str | Path] = [written, rest, *against_board(lib)]
    if any(functions.values()):
        script = lib.parent / f"{stem}.map"
        script.write_text(version_script(functions))
        parts.append(f"-Wl,--version-script={script}")
    link(library, lib, parts)


def build_driver(functions: dict[str, str], lib: Path) -> None:
    """The driver: what matters of it lies in the runtime, the rest returns 0."""
    runtime = next(lib.glob("libcudart.so.*"))
    rest = lib.parent / "libcuda.c"
    rest.write_text(stubs(set(functions) - defined_functions(runtime)))
    link(DRIVER, lib, [rest, "-Wl,--no-as-needed", runtime, "-Wl,-rpath,$ORIGIN"])


def against_board(lib: Path) -> list[str]:
    """Options to link with the board, which lies beside the library."""
    return [f"-L{lib}", "-lstandin", "-Wl,-rpath,$ORIGIN", "-Wl,--as-needed", "-lpthread"]


def link(library: str, lib: Path, parts: Sequence[str | Path]) -> None:
    compile_c(["-shared", "-o", lib / library, f"-Wl,-soname,{library}", *parts])


def compile_c(arguments: Sequence[str | Path]) -> None:
    # The stubs redefine functions the compiler knows: it shall not mind.
    options = ["-O2", "-fPIC", "-Wall", "-Wno-builtin-declaration-mismatch", "-D_GNU_SOURCE"]
    output_of("gcc", *options, *arguments)


def defined_functions(file: Path) -> set[str]:
    return set(re.findall(r" T ([^@\s]+)", output_of("nm", "--defined-only", file)))


def stubs(functions: set[str]) -> str:
    lines = [f"long {function}(void) {{ return 0; }}\n" for function in sorted(functions)]
    return "".join(lines)


def version_script(functions: dict[str, str]) -> str:
    """The symbol versions torch asks for; the first also takes what torch does not ask for."""
    by_version: defaultdict[str, list[str]] = defaultdict(list)
    for function, version in sorted(functions.items()):
        if version:
            by_version[version].append(function)
    nodes = [
        f"{version} {{ global: {' '.join(f'{name};' for name in names)}{' *;' if position == 0 else ''} }};\n"
        for position, (version, names) in enumerate(sorted(by_version.items()))
    ]
    return "".join(nodes)


def output_of(*command: str | Path) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        shown = shlex.join(str(part) for part in command)
        raise BuildError(f"this failed: {shown}\n{result.stderr.strip()}")
    return result.stdout


def write_launcher(place: Path) -> None:
    """``python``: this Python over the stand-ins, with ``import standin`` for who wants to control them."""
    folders = [str(place / "packages"), str(HERE / "python")]
    lines = [
        "#!/bin/sh",
        f"export LD_LIBRARY_PATH={shlex.quote(str(place / 'lib'))}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
        f"export PYTHONPATH={shlex.quote(os.pathsep.join(folders))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f'exec {shlex.quote(sys.executable)} "$@"',
    ]
    replace(place / "python", "\n".join(lines) + "\n", mode=0o755)


def try_out(launcher: Path) -> None:
    """Torch sees a device and allocates on it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STANDIN_", "CUDA_", "PYTORCH_"))
    }
    command = [str(launcher), "-W", "ignore", "-c", TRY_OUT]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise BuildError(f"torch does not run over the stand-in:\n{result.stderr.strip()[-2000:]}")
    print(f"stand-in: {result.stdout.strip()}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
