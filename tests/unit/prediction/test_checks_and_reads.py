"""Checks that raise where a value is bad, and numbers that torch's C++ reads from tensors by itself."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramscope.prediction import Prediction, predict  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

BEFORE = """
import torch
x, y = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
total = (x > 0).sum()

def is_right(values):
    return bool((values > 3).all())

def is_wrong(values):
    return not is_right(values)
"""


def _run(text: str) -> tuple[Prediction, dict[str, Any]]:
    # As text: pytest would rewrite its asserts.
    names: dict[str, Any] = {}
    found = predict(lambda: exec(compile(BEFORE + text, "<program>", "exec"), names))
    return found, names


CHECKS = [
    "if not (x >= y).all(): raise ValueError",
    "if (x < y).any().item() or x.min() < 0: raise ValueError(f'{x.shape}' if y is x else [i for i in '12'])",
    "if bool((x < y).any()): raise ValueError",
    "if not (x.min() > 5 and torch.equal(x, y)): raise ValueError",
    "if not torch.allclose(x, y): raise ValueError",
    "if not 3 <= x.sum().item() <= 5: raise ValueError",
    "if x.sum().item() not in (3.0, 4.0): raise ValueError",
    "if not all(one > 3 for one in x): raise ValueError",
    "if any(one < 3 for one in x): raise ValueError",
    "if not is_right(x) or is_wrong(y): raise ValueError",
    "if not (x.cpu() > 3).all(): raise ValueError",
    "assert x.sum() > 3, f'no sum {x.sum()}'",
    "assert not (x < 3).any().item()",
    "torch._assert((x > 3).all(), 'none')",
    "torch._check(x.sum().item() > 3, lambda: 'none')",
    "torch._check_value((x.sum() > 3).item())",
    "while True:\n    if (x > 3).all():\n        break\n    raise ValueError",
    "if (x > 3).all():\n    pass\nelif y is x:\n    raise ValueError\nelse:\n    raise TypeError",
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_only_raises_is_passed_and_changes_nothing(check: str):
    found, names = _run(f"{check}\nlarge = torch.empty(1 << 20, device='cuda')")

    assert "large" in names
    assert (found.reasons, found.otherwise) == ((), ())


def test_a_branch_that_raises_at_one_of_its_ends_is_run_both_ways():
    found, _ = _run("if x.sum() > 3:\n    if y is None:\n        raise ValueError\n    print('large')")

    assert [one.answer for one in found.otherwise] == ["always true"]


READS = {
    "torch.tensor([total, 3], device='cuda')": ((2,), torch.int64, True),
    "torch.tensor([[x.sum(), 1], (2, x[0].cpu())])": ((2, 2), torch.float32, False),
    "torch.tensor([x.sum().half(), x.sum().half()])": ((2,), torch.float16, False),
    "torch.tensor([total], dtype=torch.float64)": ((1,), torch.float64, False),
    "torch.tensor(data=list(x > 3))": ((8,), torch.bool, False),
    "torch.tensor([torch.nn.Parameter(torch.ones(()))])": ((1,), torch.float32, False),
    "torch.as_tensor(x.unbind(), device='cuda')": ((8,), torch.float32, True),
    "torch.asarray([total])": ((1,), torch.int64, False),
    "x.new_tensor([total, 1])": ((2,), torch.float32, True),
}


@pytest.mark.parametrize("made", READS)
def test_a_list_with_tensors_becomes_a_tensor_whose_values_are_unknown(made: str):
    found, names = _run(
        f"made = {made}\nis_large = (made > 3).any().item()\nprint(is_large)\nis_there = made.is_cuda"
    )

    assert (tuple(names["made"].shape), names["made"].dtype, names["is_there"]) == READS[made]
    assert found.reasons == ()


def test_a_list_with_tensors_whose_values_are_known_has_these_values():
    text = "lengths = [torch.tensor(n, device='cuda') for n in (3, 5)]\nmade = torch.tensor(lengths)"
    _, names = _run(text + "\nlarge = torch.empty(made.tolist(), device='cuda')")

    assert names["large"].shape == (3, 5)


def test_a_known_mask_chooses_a_known_number_of_unknown_values():
    text = """
mask = torch.tensor([[True, False, True], [False, True, True]])
source = torch.randn(2, 3, 5, device="cuda")
wide = mask.cuda().unsqueeze(-1).expand(2, 3, 1 << 16)
chosen = [source[mask], source[mask.cuda()], source[:, mask[0]], source[mask[0, :2], 1],
          source.masked_select(mask.cuda().unsqueeze(-1)), source[wide[..., 0]]]
"""
    _, names = _run(text)

    assert [tuple(one.shape) for one in names["chosen"]] == [(4, 5), (4, 5), (2, 2, 5), (1, 5), (20,), (4, 5)]


def test_what_is_made_pinned_says_so_as_do_its_views():
    text = """
made = torch.empty(4, pin_memory=True)
pinned = [made, made[1:], torch.empty_like(made, pin_memory=True), torch.zeros(4).pin_memory()]
said = [one.is_pinned() for one in (*pinned, made.clone(), x)]
"""
    _, names = _run(text)

    assert names["said"] == [True, True, True, True, False, False]
