"""A recorded program computes the same bits, on the same random numbers, as one that is not."""

import pytest
import torch
from torch import nn

from vramscope.load import load
from vramscope.record import record


def test_losses_and_random_state_are_the_same_bits(program, tmp_path):
    bare = program(5)
    with record(tmp_path / "run", quiet=True):
        recorded = program(5)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100


def test_so_they_are_with_a_block_per_step(program, tmp_path):
    bare = program(5)
    recorder = record(tmp_path / "run", quiet=True)
    recorder.__enter__()

    def next_block():
        recorder.__exit__(None, None, None)
        recorder.__enter__()

    recorded = program(5, next_block)
    recorder.__exit__(None, None, None)

    assert recorded == bare
    assert len(load(tmp_path / "run").recordings[0].trace) > 100


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.MultiheadAttention(64, 2, batch_first=True),
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(),
        lambda: nn.LSTM(64, 32, 2, batch_first=True),
        lambda: nn.Bilinear(64, 64, 8),
    ],
    ids=["attention", "encoder", "lstm", "bilinear"],
)
def test_no_operator_takes_another_way(make, mode, tmp_path):
    torch.manual_seed(3)
    model, x = make(), torch.randn(3, 40, 64)
    inputs = [x] * (
        3 if isinstance(model, nn.MultiheadAttention) else 2 if isinstance(model, nn.Bilinear) else 1
    )

    def result():
        with mode():
            out = model(*inputs)
        return (out if torch.is_tensor(out) else out[0]).tolist()

    bare = result()
    with record(tmp_path / "run", quiet=True):
        recorded = result()

    assert recorded == bare


def test_upsampling_under_inference_keeps_its_rounding(tmp_path):
    x = torch.randn(2, 3, 9, 9)

    def result():
        with torch.inference_mode():
            return nn.functional.interpolate(x, scale_factor=2, mode="bilinear").tolist()

    bare = result()
    with record(tmp_path / "run", quiet=True):
        recorded = result()

    assert recorded == bare
