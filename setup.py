"""Ship the top-level folder dashboard/ as the package vramscope.dashboard."""

from setuptools import find_namespace_packages, setup

CORE = find_namespace_packages(include=["vramscope", "vramscope.*"])
DASHBOARD = find_namespace_packages(include=["dashboard", "dashboard.*"])

setup(
    packages=CORE + [f"vramscope.{package}" for package in DASHBOARD],
    package_dir={"vramscope.dashboard": "dashboard"},
)
