"""What cuDNN takes in a dry run, beside what torch's own counters said on an H100."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812 -- torch's own name for it

from vramscope.prediction import predict  # noqa: E402
from vramscope.prediction.dry.operators.recurrent import SHAPES  # noqa: E402

H100 = Path(__file__).parent / "h100"
MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}


def _rows(name: str) -> list[dict]:
    file = json.loads((H100 / f"{name}.json").read_text())
    return [dict(zip(file["columns"], row, strict=True)) for row in file["rows"]]


def _requested(which: str) -> int:
    return torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]


def _measured(work):
    """The result, and what the work requested at most and at its end."""
    torch.cuda.reset_peak_memory_stats()
    before = _requested("current")
    result = work()
    return result, _requested("peak") - before, _requested("current") - before


def _attention(row: dict) -> list[int]:
    dtype = getattr(torch, row["dtype"])

    def part(heads, length):
        shape = (row["b"], heads, length, row["w"])
        if row["layout"] == "bshd":
            shape = (row["b"], length, heads, row["w"])
        made = torch.randn(*shape, device="cuda", dtype=dtype)
        return (made.transpose(1, 2) if row["layout"] == "bshd" else made).requires_grad_(row["grad"])

    query, key, value = part(row["h"], row["q"]), part(row["hk"], row["kv"]), part(row["hk"], row["kv"])
    mask = torch.randn(row["b"], 1, row["q"], row["kv"], device="cuda", dtype=dtype) if row["mask"] else None
    out, peak, kept = _measured(
        lambda: F.scaled_dot_product_attention(
            query, key, value, mask, row["p"], row["causal"], enable_gqa=row["hk"] != row["h"]
        )
    )
    if not row["grad"]:
        return [peak, kept]
    grad = torch.ones_like(out)
    return [peak, kept, _measured(lambda: torch.autograd.grad(out, [query, key, value], grad))[1]]


def test_attention_in_cudnn_takes_what_it_took():
    rows, found = _rows("attention"), []

    def program():
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        (x @ x).sum().backward()  # the workspaces of cuBLAS
        found.extend(map(_attention, rows))

    was_on = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with torch.backends.cudnn.flags(enabled=True):
            predict(program, card="H100")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_on)

    truths = [[row[name] for name in ("f_peak", "f_kept", "b_peak") if row[name] is not None] for row in rows]
    wrong = [(row, *pair) for row, *pair in zip(rows, found, truths, strict=True) if pair[0] != pair[1]]
    assert wrong == []
    assert len(rows) >= 40


def test_recurrent_layers_keep_at_least_nearly_what_they_kept():
    off = []
    for row in _rows("recurrent"):
        dtype, n_directions = getattr(torch, row["dtype"]), 2 if row["bi"] else 1
        shape = (row["n"], row["t"], row["i"]) if row["bf"] else (row["t"], row["n"], row["i"])
        state = torch.empty(row["l"] * n_directions, row["n"], row["h"], dtype=dtype, device="meta")
        cell = state if row["kind"] == "LSTM" else None
        reserve = SHAPES[torch.ops.aten._cudnn_rnn.default](
            torch.empty(shape, dtype=dtype, device="meta"), [], 4, None, state, cell, MODES[row["kind"]],
            row["h"], 0, row["l"], row["bf"], row["p"], row["train"], row["bi"], [], None,
        )[3].numel()  # fmt: skip
        off.append(row["reserve"] - reserve)
        assert 0 <= off[-1] <= max(128, 0.024 * row["reserve"]), row

    assert len(off) >= 1000
    assert off.count(0) >= 0.5 * len(off)
