"""Shards the models that a program trains over several cards, from outside, as FSDP2 of torch does it."""

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from vramscope.capture.undisturbed.tracked import tracked_objects
from vramscope.prediction.dry.shim.patches import Patches

_NO_BLOCKS = "an optimizer trains parameters of no model with repeated blocks in a ModuleList or Sequential"


class Sharding:
    """What became of the models: each is sharded where it goes to the card, or where its optimizer is made.

    The first of eight cards is run, in a process group that sends nothing.
    """

    def __init__(self, n_cards: int, blocks_of: Callable[[Any], Iterable[torch.nn.Module]]) -> None:
        self._n_cards = n_cards
        self._blocks_of = blocks_of
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._n_roots = 0
        self._untrained: set[int] = set()
        self._uncalled: set[int] = set()
        self._why = ""

    def begin(self, patches: Patches) -> None:
        """Watch where models go and where their optimizers are made, until the patches are undone."""
        for name in ("cuda", "to"):
            patches.set(torch.nn.Module, name, self._moved_by(getattr(torch.nn.Module, name)))
        patches.set(torch.optim.Optimizer, "__init__", self._trained_by(torch.optim.Optimizer.__init__))

    def problem(self) -> str:
        """Return why there is no figure; '' if every trained model was sharded, and nothing else."""
        why = (
            (self._why, self._why),
            (not self._n_roots, "no optimizer trains a model"),
            (self._untrained, "it would shard a model that no optimizer trains"),
            (self._uncalled, "the program calls parts of a model, where FSDP2 needs a call of the whole"),
        )
        return next((text for is_so, text in why if is_so), "")

    def _moved_by(self, move: Callable[..., Any]) -> Callable[..., Any]:
        def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
            goes = move.__name__ == "cuda" or _is_card(torch._C._nn._parse_to(*args, **kwargs)[0])
            if goes and any(each.requires_grad for each in module.parameters()):
                self._shard(module)
            return move(module, *args, **kwargs)

        return moved

    def _trained_by(self, init: Callable[..., None]) -> Callable[..., None]:
        def trained(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            groups = [group["params"] for group in optimizer.param_groups]
            homes = _homes([each for group in groups for each in group])
            places = [[homes.get(id(each)) for each in group] for group in groups]
            for group in groups:
                group.clear()  # a whole parameter lasts until its shard is there
            for root in _outermost({id(place[0]): place[0] for group in places for place in group if place}):
                self._shard(root)
            for group, homes_of_group in zip(groups, places, strict=True):
                group += [getattr(*place) for place in homes_of_group if place]
            self._see(groups, n_lost=sum(place is None for group in places for place in group))

        return trained

    def _see(self, groups: list[list[Any]], n_lost: int) -> None:
        from torch.distributed.tensor import DTensor

        trained = {id(each) for group in groups for each in group}
        if n_lost:
            self._why = "an optimizer takes parameters that are no longer, or never were, those of a model"
        elif not all(isinstance(each, DTensor) for group in groups for each in group):
            self._why = self._why or _NO_BLOCKS
        for root, number in self._roots.items():
            if any(id(each) in trained for each in root.parameters()):
                self._untrained.discard(number)

    def _shard(self, model: torch.nn.Module) -> None:
        """Shard each block and then the whole, as the author would; a model without blocks stays whole."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        blocks = list(self._blocks_of(model))
        if isinstance(model, FSDPModule) or not blocks or self._why:
            return
        if not self._n_roots:
            if torch.distributed.is_initialized():
                self._why = "the program runs on several cards already"
                return
            torch.distributed.init_process_group("nccl", rank=0, world_size=self._n_cards)
        for module in (*blocks, model):
            if not isinstance(module, FSDPModule):
                fully_shard(module)
        self._n_roots += 1
        self._roots[model] = self._n_roots
        self._untrained.add(self._n_roots)
        self._uncalled.add(self._n_roots)
        model.register_forward_pre_hook(partial(self._called, self._n_roots))

    def _called(self, number: int, *_: Any) -> None:
        self._uncalled.discard(number)


def _is_card(device: torch.device | None) -> bool:
    return device is not None and device.type not in ("cpu", "meta")


def _homes(parameters: list[Any]) -> dict[int, tuple[torch.nn.Module, str]]:
    """Return the module that has each parameter, and its name there, by the parameter's ``id()``."""
    wanted = {id(each) for each in parameters}
    return {
        id(parameter): (module, name)
        for module in _modules()
        for name, parameter in module._parameters.items()
        if id(parameter) in wanted
    }


def _outermost(modules: dict[int, torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that have any of these and are no part of another one."""
    everything = _modules()
    parts = {id(child) for each in everything for child in each.children()}
    return [
        each
        for each in everything
        if id(each) not in parts and any(id(part) in modules for part in each.modules())
    ]


def _modules() -> list[torch.nn.Module]:
    return tracked_objects(lambda kind: issubclass(kind, torch.nn.Module))
