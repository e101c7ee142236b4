"""The recorder never waits for the device, never empties the cache, never resets a counter of the user's."""

import ast
from pathlib import Path

import pytest
from catalogue import GROUP_OF

PACKAGE = Path(__file__).parents[2] / "vramscope"
FORBIDDEN = {
    "synchronize",
    "empty_cache",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "_cuda_synchronize",
    "_cuda_emptyCache",
    "_cuda_resetPeakMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "emptyCache",
    "resetPeakStats",
}
# Cannot know torch (an import contract); the model of the allocator has such functions of its own.
PURE = (PACKAGE / "allocator", PACKAGE / "analysis", PACKAGE / "model")
# A dry run has no device: it answers these calls of the program itself and counts them in the model.
DRY_RUN = (PACKAGE / "prediction" / "dry",)
# Stands around the program's own calls of ``empty_cache`` and hands them on. The workloads show that it makes
# none itself: guards.py looks at who calls it.
STANDS_AROUND = (PACKAGE / "capture" / "cuda" / "emptied_cache.py",)
# Lists private functions of torch; only emptied_cache.py takes those that empty the cache from it.
LISTS = (PACKAGE / "capture" / "torch_versions" / "private_functions.py",)
# Here also a name in quotes could become a call.
NEAR_TORCH = (PACKAGE / "capture", PACKAGE / "integrations", PACKAGE / "prediction", PACKAGE / "recorder")


def named(tree, *, in_quotes):
    """(line, name) of everything that code could call by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((node.lineno, alias.name.split(".")[-1]) for alias in node.names)
        elif in_quotes and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value.split(".")[-1]


def found_in(text, *, in_quotes=True):
    return [name for _, name in named(ast.parse(text), in_quotes=in_quotes) if name in FORBIDDEN]


def test_our_code_names_no_function_that_would_disturb():
    files = [
        file
        for file in PACKAGE.rglob("*.py")
        if not any(map(file.is_relative_to, PURE + DRY_RUN + STANDS_AROUND + LISTS))
    ]
    wrong = [
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in files
        for name in found_in(
            file.read_text(), in_quotes=any(file.is_relative_to(place) for place in NEAR_TORCH)
        )
    ]

    importing = {
        file.name
        for file in files + list(STANDS_AROUND)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("private_functions")
        if any(alias.name.endswith("EMPTY_CACHE") for alias in node.names)
    }
    resetting = {
        file.name
        for file in PACKAGE.rglob("*.py")
        if not any(map(file.is_relative_to, DRY_RUN + LISTS)) and "RESET_PEAKS" in file.read_text()
    }
    assert wrong == []
    # It shows the program its own peaks all the same: test_counters_mode.py.
    assert resetting == {"interval_peaks.py"}
    assert importing == {"emptied_cache.py"}
    assert len(files) > 60


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.synchronize()",
        "from torch.cuda import empty_cache as e",
        "f = torch.cuda.memory.reset_peak_memory_stats",
        "getattr(torch._C, '_cuda_emptyCache')()",
        "stream.synchronize()",
        "operator.attrgetter('cuda.empty_cache')(torch)()",
    ],
)
def test_it_would_be_found(code):
    assert found_in(code)


def test_comments_and_explanations_may_name_them():
    assert not found_in('"""Never calls empty_cache or synchronize."""  # nor empty_cache()')


@pytest.mark.standin
@pytest.mark.xdist_group("cuda-workloads")
@pytest.mark.parametrize("name", GROUP_OF)
def test_our_code_calls_none_of_them_in_any_workload(truth_of, name):
    truth = truth_of(name)

    assert truth.recorded["guarded"]["ours"] == []
    # The program's own calls came through, as many as without us.
    assert truth.recorded["guarded"]["theirs"] == truth.plain["guarded"]["theirs"] | {
        "_cuda_resetPeakMemoryStats": truth.recorded["guarded"]["theirs"]["_cuda_resetPeakMemoryStats"]
    }
