"""Which of torch's two variables configures its CUDA allocator."""

import pytest

from vramscope.capture.torch_versions import allocator_conf

CUDA, BOTH = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("torch", "variables", "expected"),
    [
        ("2.6.0+cu124", {BOTH: "b:1"}, ""),
        ("2.9.1+cu128", {BOTH: "b:1"}, ""),
        ("2.9.1+cu128", {BOTH: "b:1", CUDA: "a:1"}, "a:1"),
        ("2.11.0", {BOTH: "b:1"}, "b:1"),
        ("2.13.0", {BOTH: "b:1", CUDA: "a:1"}, "a:1"),
        ("2.13.0", {}, ""),
    ],
)
def test_only_what_this_torch_reads_counts(monkeypatch, torch, variables, expected):
    for name in (CUDA, BOTH):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)

    assert allocator_conf(torch) == expected
