"""Ship dashboard/ and sample_traces/ inside of the package vramscope, and a README for the index."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
REPOSITORY = "https://github.com/vramscope/vramscope"
CORE = find_namespace_packages(include=["vramscope", "vramscope.*"])
SAMPLES = find_namespace_packages(include=["sample_traces", "sample_traces.*"])
DASHBOARD = find_namespace_packages(include=["dashboard", "dashboard.*"])


def readme() -> str:
    """The README with absolute links: on the package index no repository lies beside it."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.+)"', (HERE / "vramscope" / "_version.py").read_text())[1]
    raw = f"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/v{version}/"
    text = re.sub(r'(src|srcset)="(?!https?:)', rf'\1="{raw}', text)
    return re.sub(r"\]\((?!https?:|#)", f"]({REPOSITORY}/blob/v{version}/", text)


setup(
    packages=CORE + [f"vramscope.{package}" for package in DASHBOARD + SAMPLES],
    package_dir={"vramscope.dashboard": "dashboard", "vramscope.sample_traces": "sample_traces"},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
