"""A training of a module alone: forward, backward and AdamW on inputs of given shapes."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_STEPS = 1000


def training_of(module: Any, inputs: Sequence[Any]) -> Callable[[], None]:
    """A program that trains a copy of *module*; the module itself stays as it is."""

    def program() -> None:
        # Copied with fakes in the place of its parameters: the real ones may be larger than this machine.
        fakes = {id(one): torch.nn.Parameter(one.detach(), one.requires_grad) for one in module.parameters()}
        model = copy.deepcopy(module, fakes).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(_STEPS):
            given = [_input(one) for one in inputs]
            loss = sum(one.float().mean() for one in _floats(model(*given)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def _input(wanted: Any) -> Any:
    if isinstance(wanted, torch.Tensor):
        return torch.empty_like(wanted, device="cuda")
    return torch.empty(tuple(wanted), device="cuda")


def _floats(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        yield from _floats(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _floats(one)
