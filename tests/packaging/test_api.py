"""The public Python API: its names, its docstrings and the examples in them."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import FunctionType

import pytest

import vramscope
from vramscope import results
from vramscope.analysis import own_analyses

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api.md"
NO_TORCH = importlib.util.find_spec("torch") is None
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public() -> dict[str, object]:
    """Every public name, and every method and property of the public classes that is no question."""
    names = [name for name in vramscope.__all__ if not name.startswith("_")]
    found = {name: getattr(vramscope, name) for name in names}
    for kind in [each for each in found.values() if inspect.isclass(each)]:
        for name in dir(kind) if not issubclass(kind, Exception) else ():
            member = inspect.getattr_static(kind, name)
            if not name.startswith("_") and isinstance(member, FunctionType | property | classmethod):
                found[f"{kind.__name__}.{name}"] = member
    return {name: each for name, each in found.items() if name.partition(".")[2] not in own_analyses()}


FUNCTIONS = [each for each in public().values() if isinstance(each, FunctionType)]
"""Functions whose docstring must have sections."""


def sections(function) -> dict[str, str]:
    """The NumPy sections of a docstring: title → text."""
    parts = re.split(r"^(\w+)\n-{3,}\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def from_the_root(monkeypatch, tmp_path):
    """Examples find ``sample_traces``; what they record lands elsewhere."""
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_docstrings_of_public_functions_name_every_parameter_and_what_is_returned(function):
    found = sections(function)
    signature = inspect.signature(function)
    documented = re.findall(r"^(\w+)$", found.get("Parameters", ""), flags=re.MULTILINE)

    assert documented == [name for name in signature.parameters if name != "self"]
    assert ("Returns" in found) == (signature.return_annotation not in (None, "None"))


@pytest.mark.slow
@pytest.mark.usefixtures("from_the_root")
@pytest.mark.skipif(NO_TORCH, reason="some examples record")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_examples_in_docstrings_run(function, capsys):
    for example in doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs={}):
        failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(example)

        assert failed == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("from_the_root")
@pytest.mark.skipif(NO_TORCH, reason="some examples record")
@pytest.mark.parametrize("name", ["api", "tutorial", "tutorial-oom", "tutorial-fit", "tutorial-fleet"])
def test_examples_in_documents_run(name, capsys):
    path = str(ROOT / "docs" / f"{name}.md")
    failed, attempted = doctest.testfile(path, module_relative=False, optionflags=OPTIONS)

    assert attempted > 10
    assert failed == 0, capsys.readouterr().out


def test_every_public_name_has_a_docstring_and_stands_in_an_example_that_is_run():
    examples = doctest.DocTestParser().get_examples(API.read_text(encoding="utf-8"))
    used = set(re.findall(r"\w+", "\n".join(example.source for example in examples)))
    names = public()

    assert len(names) > 40
    assert [name for name, each in names.items() if len((inspect.getdoc(each) or "").split()) < 3] == []
    assert [name for name in names if name.rpartition(".")[2] not in used] == []


@pytest.mark.parametrize("kind", [vramscope.Recorder, vramscope.Run, vramscope.Recording, results.Follower])
def test_the_reference_names_every_public_member(kind):
    text = API.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+\.)?(\w+)", text))

    assert {name for name in dir(kind) if not name.startswith("_")} - named == set()
    assert {name for name in vramscope.__all__ if not name.startswith("_")} - named == set()


def test_the_reference_shows_the_true_signatures():
    text = API.read_text(encoding="utf-8")
    shown = re.search(rf"`{vramscope.record.__name__}\((.*?)\)` \|", text)[1]
    parameters = inspect.signature(vramscope.record).parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    expected = str(inspect.Signature(plain)).replace("'", '"')

    assert f"({shown})" == expected


def test_public_errors_are_the_whole_tree():
    errors = importlib.import_module("vramscope.errors")
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value)}

    assert tree == {name for name in vramscope.__all__ if name.endswith("Error")}


def test_every_type_that_a_method_names_is_a_result_type():
    for name, method in inspect.getmembers(vramscope.Recording, inspect.isfunction):
        if not name.startswith("_"):
            hint = str(inspect.signature(method).return_annotation)
            known = {kind.__name__ for kind in vars(results).values() if inspect.isclass(kind)}
            named = {word for word in re.findall(r"[A-Z]\w+", hint) if word not in ("NDArray", "Any")}

            assert named <= known, name


def test_result_types_are_classes_with_a_docstring_in_one_namespace():
    for name in results.__all__:
        kind = getattr(results, name)

        assert inspect.isclass(kind), name
        assert len((kind.__doc__ or "").split()) > 1, name


def test_findings_of_a_run_name_the_ranks_that_share_them():
    run = vramscope.load(ROOT / "sample_traces" / "gan-retain-graph")
    (recording,) = run.recordings
    (shared,) = run.findings()

    assert shared.finding == recording.findings()[0] == recording.summary().findings[0]
    assert (shared.rank, shared.device, shared.of) == (0, 0, ((0, 0),))
