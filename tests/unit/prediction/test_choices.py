"""Branches that a program takes by values that nobody computed: each is run the other way, too."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramscope.prediction import Prediction, predict  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20


def _seen(program: Callable[[Any], Any], **options: Any) -> Prediction:
    def body() -> None:
        weight = torch.zeros(256, device="cuda", requires_grad=True)
        program((weight * torch.randn(256, device="cuda")).sum())

    return predict(body, **options)


def _item(loss: Any) -> bool:
    return loss.item() > 0.5


def _tensor(loss: Any) -> bool:
    return bool(loss > 0.5)


def _float(loss: Any) -> bool:
    return float(loss) > 100


def _host(loss: Any) -> bool:
    losses = torch.zeros(3)
    losses[1] = loss.item()
    return bool(losses.mean() > 0.5)


def _equal(loss: Any) -> bool:
    return torch.equal(loss, torch.randn((), device="cuda"))


@pytest.mark.parametrize(
    "asks", [_item, _equal, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (_tensor, _float))]
)
def test_the_range_has_the_peaks_of_both_branches(asks: Callable[[Any], bool]):
    def program(loss: Any) -> None:
        if asks(loss):
            torch.zeros(100 * MIB, device="cuda", dtype=torch.uint8)

    found = _seen(program)
    low, high = found.range_bytes

    assert (low // MIB, (high or 0) // MIB) == (0, 100)
    assert found.fits is True
    assert _seen(program, capacity="942MiB").fits is True
    assert _seen(program, capacity="812MiB").fits is None
    assert {each.fits for each in found.cards} == {True}


def test_a_branch_without_memory_leaves_a_range_without_width():
    def program(loss: Any) -> None:
        if loss.item() > 0.5:
            print("large")

    found = _seen(program)

    assert found.range_bytes == (found.peak_allocated_bytes, found.peak_allocated_bytes)
    assert [each.answer for each in found.otherwise] == ["always true"]


def test_the_least_loss_so_far_is_followed_as_it_falls_and_as_it_rises():
    def program(loss: Any) -> None:
        best, kept = float("inf"), []
        for _ in range(3):
            value = float(loss)
            if value < best:
                best = value
                kept.append(torch.zeros(10 * MIB, device="cuda", dtype=torch.uint8))

    low, high = _seen(program).range_bytes

    assert (low // MIB, (high or 0) // MIB) == (10, 30)


def test_a_loop_that_waits_for_another_answer_ends_and_has_no_upper_bound():
    def program(loss: Any) -> None:
        while loss.item() > 0.5:
            loss = loss * 0.5

    found = _seen(program)

    assert found.range_bytes[1] is None
    assert found.fits is None
    assert [each.problem for each in found.otherwise] == ["the program does not go on with this answer"]


def test_a_branch_that_fails_has_no_upper_bound():
    def program(loss: Any) -> None:
        if loss.item() > 0.5:
            torch.randn(2, device="cuda") @ torch.randn(3, device="cuda")

    found = _seen(program)

    assert found.range_bytes[1] is None
    assert "inconsistent tensor size" in found.otherwise[0].problem


def test_a_size_that_nobody_computed_has_no_upper_bound():
    def program(loss: Any) -> None:
        torch.zeros((loss > 0).sum().item() + 1, device="cuda")

    found = _seen(program)

    assert (found.certainty, found.range_bytes[1], found.fits) == ("estimate", None, None)


SCRIPT = """
import torch

model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
best = float("inf")
for _ in range(5):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < best:
        best = loss.item()
        kept = torch.zeros(50 << 20, device="cuda", dtype=torch.uint8)
"""


def test_the_command_runs_a_script_for_every_answer(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "vramscope", "predict", "--json", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    low, high = found["peak_allocated_range_bytes"]

    assert [(each["where"], each["answer"]) for each in found["otherwise"]] == [
        ("train.py:12", "always true"),
        ("train.py:12", "always false"),
    ]
    assert (low, high) == tuple(each["peak_allocated_bytes"] for each in found["otherwise"][::-1])
    assert high - low > 90 * MIB
