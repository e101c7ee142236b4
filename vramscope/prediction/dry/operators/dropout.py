"""Dropout: one fused kernel on CUDA, whose mask has a byte an element."""

from typing import Any

import torch


def dropout(input: Any, p: float, train: bool) -> Any:  # noqa: A002 -- the schema's names
    """``aten::dropout`` as it chooses on CUDA: on the host it would multiply with noise of full width."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input.mul(torch.zeros((), dtype=input.dtype, device=input.device))
    return torch.native_dropout(input, p, train)[0]


REPLACEMENTS = {"dropout": dropout}
