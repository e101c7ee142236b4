"""What the host works on costs the card nothing, and values that nobody computed stay unknown."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramscope.errors import VramscopeError  # noqa: E402
from vramscope.prediction import Prediction, predict  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20


def _big(n: Any) -> None:
    torch.zeros(int(n) * MIB, dtype=torch.uint8, device="cuda")


def _value() -> Any:
    return torch.rand((), device="cuda").sin().item()


def _on_host() -> None:
    torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    torch.randn(2_000_000).sort()
    torch.randn(3000, 1000).mean(0)
    torch.nn.Embedding(9000, 64)(torch.randint(0, 9000, (8, 50))).sum().backward()
    torch.nn.LSTM(8, 8)(torch.randn(3, 2, 8))
    torch.linalg.svd(torch.randn(20, 20))
    torch.nn.functional.conv1d(torch.randn(1, 3, 9), torch.randn(2, 3, 3))


def test_work_of_the_host_costs_the_card_nothing():
    found = predict(_on_host)

    assert (found.certainty, found.peak_allocated_bytes) == ("checked", MIB)


def test_a_program_of_the_host_alone_has_no_figures():
    with pytest.raises(VramscopeError, match="never asks for the card"):
        predict(lambda: torch.nn.Linear(9, 9)(torch.randn(2, 9)).sum().backward())


def _place() -> None:
    losses = [_value() for _ in range(4)]
    _big(10 * (losses.index(max(losses)) + 1))


def _by_key() -> None:
    losses = [_value() for _ in range(4)]
    _big(10 * (min(range(4), key=lambda i: losses[i]) + 1))


def _pair() -> None:
    _big(10 * (max((_value(), place) for place in range(3))[1] + 1))


def _members() -> None:
    _big(10 * len({_value() for _ in range(5)}))


def _row() -> None:
    _big({_value(): 10}.get(2.0, 40))


def _length() -> None:
    _big(torch.arange(0, _value(), 0.01).numel() + 1)


def _near() -> None:
    _big(10 if math.isclose(_value(), 0.5) else 40)


def _added() -> None:
    _big(10 if math.fsum([_value(), _value()]) > 0.5 else 40)


def _quotient() -> None:
    _big(10 + divmod(_value(), 0.25)[0])


def _text() -> None:
    _big(10 if f"{_value():.2f}".startswith("0.0") else 40)


@pytest.mark.parametrize(
    "program", [_place, _by_key, _pair, _members, _row, _length, _near, _added, _quotient, _text]
)
def test_a_size_that_follows_from_a_value_is_never_checked(program: Callable[[], None]):
    found = predict(program)

    assert found.certainty == "estimate"


def test_a_whole_number_that_was_read_goes_back_into_tensors():
    np = pytest.importorskip("numpy")

    def program() -> None:
        action = torch.randn(6, device="cuda").argmax().item()
        rows = torch.tensor([action, 1, action]).cuda()
        assert rows.dtype == torch.int64
        (torch.ones(3, device="cuda") * action).sum()
        _big(torch.tensor(np.array([action, action])).numel())

    found = predict(program)

    assert found.certainty == "estimate"
    assert any("NumPy" in reason for reason in found.reasons)


def _sampled() -> None:
    logits = torch.randn(64, 10, device="cuda")
    actions = torch.distributions.Categorical(logits=logits).sample()
    torch.distributions.Categorical(logits=logits).log_prob(actions)
    torch.distributions.Normal(logits, logits.exp()).rsample()


def test_distributions_find_their_parameters_valid():
    assert predict(_sampled).certainty == "checked"


class _Cycle:
    def __init__(self, tensor: Any) -> None:
        self.tensor, self.own = tensor, self


def _cycles(*, is_off: bool) -> Prediction:
    def program() -> None:
        if is_off:
            gc.disable()
        for _ in range(20):
            _Cycle(torch.zeros(MIB, dtype=torch.uint8, device="cuda"))
        gc.enable()

    was_enabled = gc.isenabled()
    found = predict(program)
    assert gc.isenabled() == was_enabled
    return found


def test_when_a_cycle_is_freed_is_python_s_to_say():
    found, again = _cycles(is_off=False), _cycles(is_off=False)

    assert found.peak_allocated_bytes == again.peak_allocated_bytes
    assert _cycles(is_off=True).peak_allocated_bytes == 20 * MIB
    assert found.range_bytes[0] <= found.peak_allocated_bytes


@pytest.mark.parametrize("is_causal", [True, False])
def test_causal_plain_attention_takes_what_a_mask_of_numbers_takes(is_causal: bool):
    def program() -> None:
        parts = [torch.zeros(1, 1, 512, 8, device="cuda", dtype=torch.float64) for _ in range(3)]
        mask = None if is_causal else torch.zeros(512, 512, device="cuda", dtype=torch.float64)
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=is_causal)

    found = predict(program, card="A100 40")

    assert found.certainty == "checked"
    assert 6 * MIB < found.peak_allocated_bytes - 8_519_680 < 7 * MIB


def test_products_of_groups_have_a_result_of_any_type():
    def program(dtype: torch.dtype) -> None:
        rows, weights = (
            torch.zeros(96, 64, device="cuda", dtype=dtype),
            torch.zeros(4, 64, 100, device="cuda", dtype=dtype),
        )
        out = torch._grouped_mm(
            rows, weights, offs=torch.tensor([9, 20, 60, 96], device="cuda", dtype=torch.int32)
        )
        assert out.shape == (96, 100)
        assert out.stride() == (100 if dtype == torch.float32 else 104, 1)

    for dtype in (torch.float32, torch.bfloat16):
        assert predict(lambda dtype=dtype: program(dtype)).certainty == "checked"


ON_THE_HOST = """
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

class Data(Dataset):
    def __init__(self):
        self.x = np.zeros((90, 50), dtype=np.float32)
    def __len__(self):
        return 90
    def __getitem__(self, i):
        return {"x": torch.from_numpy(self.x[i]), "y": i % 7}

train, test = random_split(Data(), [64, 26])
net = nn.Sequential(nn.Linear(50, 800), nn.GELU(), nn.Linear(800, 7))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
kept = torch.zeros(1_000_000, device="cpu")
for batch in DataLoader(train, 16, shuffle=True, num_workers=WORKERS):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
    optimizer.step()
table = torch.from_numpy(np.zeros((7, 100))).float() + torch.ones(7, 1)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_never_asks_for_the_card_runs_as_if_it_did(workers):
    def run(text, **options):
        names = {}
        code = compile(text.replace("WORKERS", str(workers)), "<program>", "exec")
        found = predict(lambda: exec(code, names), steps=None, **options)
        return found, names["table"]

    moved = ON_THE_HOST.replace("nn.Linear(800, 7))", "nn.Linear(800, 7)).cuda()")
    taken = "    batch = {name: one.cuda() for name, one in batch.items()}\n"
    moved = moved.replace("    optimizer.zero_grad()", f"{taken}    optimizer.zero_grad()")
    moved = moved.replace("torch.ones(7, 1)", "torch.ones(7, 1).cuda()")
    moved = moved.replace("np.zeros((7, 100)))", "np.zeros((7, 100))).cuda()")
    truth, _ = run(moved)

    found, table = run(ON_THE_HOST, as_cuda=True)

    assert table.device.type != "cpu"
    assert found.peak_allocated_bytes == truth.peak_allocated_bytes
    assert (found.certainty, truth.certainty) == ("estimate", "checked")
    assert found.reasons[0].startswith("--as-cuda: ")
    with pytest.raises(VramscopeError, match="--as-cuda runs it as if"):
        run(ON_THE_HOST)


def test_a_loop_that_its_length_ends_ends_whatever_else_might_end_it():
    counts = []

    def program():
        unfinished = torch.ones(2, dtype=torch.long, device="cuda")
        n = 0
        while n < 99:
            n += 1
            # As transformers' generate() does: the length, or a token that the device draws.
            is_last = torch.full((2,), n >= 5, device="cuda", dtype=torch.bool)
            is_last = is_last | (torch.randint(0, 9, (2,), device="cuda") == 2)
            unfinished = unfinished & ~is_last
            if unfinished.max() == 0:
                break
        counts.append(n)

    predict(program, steps=None)

    assert counts[0] == 5
    assert max(counts) == 5


def test_what_one_operand_decides_is_known():
    answers = []

    def program():
        drawn = torch.randint(0, 2, (4,), device="cuda").bool()
        numbers = torch.randint(0, 2, (4,), device="cuda")
        numbers &= torch.zeros(4, dtype=torch.long, device="cuda")
        answers.append((numbers.tolist(), (drawn | torch.ones_like(drawn)).tolist()))

    predict(program, steps=None)

    assert answers == [([0, 0, 0, 0], [True] * 4)]
