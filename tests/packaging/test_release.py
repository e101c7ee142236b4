"""What a release consists of says the same everywhere, and leads somewhere from the package index."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
import setuptools
import tomllib

from vramscope._version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCE = PROJECT["project"]["urls"]["Source"]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture
def index_page(monkeypatch) -> str:
    """The README as the package index gets it."""
    made = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: made.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return made["long_description"]


def test_every_link_and_picture_on_the_index_leads_into_the_released_version(index_page):
    links = re.findall(r"\]\(([^)]+)\)", index_page)
    pictures = re.findall(r'src(?:set)?="([^"]+)"', index_page)
    ours = [link.removeprefix(f"{SOURCE}/blob/v{__version__}/") for link in links]
    files = [re.sub(rf".*/v{re.escape(__version__)}/", "", picture) for picture in pictures]

    assert len(ours) > 10
    assert len(files) == 1
    assert all(link.startswith("https://") for link in links + pictures)
    assert [path for path in ours + files if not (ROOT / path.partition("#")[0]).exists()] == []


def test_version_and_license_are_the_same_in_every_file():
    assert f"## {__version__}" in text("CHANGELOG.md")
    assert f"\nversion: {__version__}\n" in text("CITATION.cff")
    assert f'set version = "{__version__}"' in text("conda/meta.yaml")
    assert PROJECT["project"]["license"] in text("CITATION.cff")
    for document in ("README.md", "docs/start.md"):
        assert set(re.findall(r"vramscope-([\d.]+)-py3", text(document))) == {__version__}


def test_every_address_of_the_repository_is_that_of_the_project():
    named = [*ROOT.glob("*.*"), *(ROOT / ".github").rglob("*.*"), *(ROOT / "conda").iterdir()]
    found = {
        address
        for path in named
        if path.suffix in (".md", ".cff", ".yml", ".yaml", ".py", ".toml")
        for address in re.findall(r"https://github\.com/vramscope/\w+", path.read_text(encoding="utf-8"))
    }

    assert found == {SOURCE}


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = text("conda/meta.yaml").split("  run:\n")[1].split("test:")[0]
    needed = [
        re.split(r"[;]", each)[0].replace(">=", " >=").strip() for each in PROJECT["project"]["dependencies"]
    ]

    assert re.findall(r"- (.+)", recipe) == [f"python {PROJECT['project']['requires-python']}", *needed]


def test_the_workflow_runs_what_ci_runs_on_every_python_of_the_classifiers():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    prefix = "Programming Language :: Python :: 3."
    pythons = [line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if prefix in line]

    assert "bash .ci/run" in [step.get("run") for step in jobs["test"]["steps"]]
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in pythons]
    assert set(jobs["publish"]["needs"]) == {"test", "wheel"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_every_form_and_workflow_is_yaml(path):
    assert pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))


def test_the_hooks_before_a_commit_run_tools_of_the_environment():
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    dev = " ".join(str(each) for each in PROJECT["dependency-groups"]["dev"])

    for hook in hooks:
        tool = Path(shlex.split(hook["entry"])[0]).name
        assert tool in dev or tool == "python"


def test_the_image_copies_what_the_package_is_built_from():
    shipped = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    built = runpy.run_path(str(ROOT / "scripts" / "environments.py"))["SHIPPED"]

    assert shipped == set(built)


def test_the_image_starts_a_server_that_takes_its_arguments():
    import json
    from argparse import ArgumentParser

    command = pytest.importorskip("vramscope.dashboard.command").COMMAND
    words = json.loads(re.search(r"^ENTRYPOINT (.*)$", text("Dockerfile"), flags=re.MULTILINE)[1])
    parser = ArgumentParser()
    command.arguments(parser)
    args = parser.parse_args(
        [*words[2:], *json.loads(re.search(r"^CMD (.*)$", text("Dockerfile"), re.MULTILINE)[1])]
    )

    assert words[:2] == ["vramscope", "serve"]
    assert (args.path, args.host, args.allow_host) == ("/traces", "0.0.0.0", ["localhost", "127.0.0.1"])


@pytest.mark.parametrize("folder", ["tests", "docs", "sample_traces", "examples"])
def test_the_source_distribution_has_what_distributors_want(folder):
    assert f"graft {folder}\n" in text("MANIFEST.in")


def measured(variant: str) -> str:
    """How many times a step takes with a variant, of the published table."""
    row = next(
        line for line in text("benchmarks/OVERHEAD.md").splitlines() if line.startswith(f"| {variant}")
    )
    return f"{float(row.split('|')[3].split()[0]):.2f}"


def test_the_figures_of_the_readme_are_the_published_ones():
    events, history = measured("vramscope, events"), measured("torch _record_memory_history")
    checked = re.findall(
        r"^\| checked \| (\d+) \| allocated .* (\S+) % \|$", text("benchmarks/PREDICTION.md"), re.MULTILINE
    )

    assert f"[{events} times; torch's own history {history}]" in text("README.md")
    assert f"[{measured('vramscope, mode=')} times]" in text("README.md")
    assert "every one of the 262,997 addresses" in text("ARCHITECTURE.md")
    assert {worst for _, worst in checked} == {"0.000"}
    assert sum(int(runs) for runs, _ in checked[:2]) >= 40
