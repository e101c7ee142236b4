"""On which versions of torch were the tables of operators checked, and what differs between versions?

A table says what operators of one torch take. ``benchmarks/prediction.py`` holds it against the allocator of
each version named here, and is exact there; on any other version a prediction is an estimate.
"""

import os

import torch

from vramscope.capture.torch_versions import version

CHECKED = ("2.13.0", "2.14.1", "2.15.0")
"""The versions whose tables were held against torch's own allocator (benchmarks/PREDICTION.md)."""

NOT_CHECKED = (
    f"what operators take was checked on {', '.join(CHECKED[:-1])} and {CHECKED[-1]}, not on this version"
)


def name() -> str:
    """The version of torch without its build: ``2.15.0`` of ``2.15.0+cu132``."""
    return str(torch.__version__).partition("+")[0]


def is_checked() -> bool:
    """Whether the tables were checked on this version of torch."""
    return name() in CHECKED


def keeps_workspaces() -> bool:
    """Whether cuBLAS keeps its workspace between products, as it does before torch 2.15.

    Later versions take one for each product and give it back (``TORCH_CUBLAS_WORKSPACE_CACHE``).
    """
    return version(name()) < (2, 15) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def keeps_lt_workspaces() -> bool:
    """Whether a thread keeps one of cuBLASLt, for products with a bias, beside cuBLAS's: until torch 2.11.

    A graph that is deleted then leaves the workspaces of its stream.
    """
    return version(name()) < (2, 12)


def has_new_efficient_attention() -> bool:
    """Whether attention takes three dimensions and shared keys, and has seeds without dropout: from 2.14."""
    return version(name()) >= (2, 14)


def seeds_every_graph() -> bool:
    """Whether a graph has a seed and an offset although it draws no random numbers: until torch 2.13."""
    return version(name()) < (2, 14)


def sums_single_places() -> bool:
    """Whether group normalization of single places sums over channels first: until torch 2.13."""
    return version(name()) < (2, 14)


def normalizes_channels_last() -> bool:
    """Whether group normalization has kernels for channels that lie last: from torch 2.15 on."""
    return version(name()) >= (2, 15)
