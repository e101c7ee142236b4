"""Shards the models that a program trains over several cards, from outside, as FSDP2 of torch does it."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from vramscope.capture.undisturbed.tracked import tracked_objects
from vramscope.prediction.dry.shim.patches import Patches

_CAPTURED = "an optimizer takes parameters that are no longer, or never were, those of a model"
_NO_BLOCKS = "an optimizer trains parameters of no model with repeated blocks in a ModuleList or Sequential"
_UNTRAINED = "it would shard a model that no optimizer trains"


class Sharding:
    """Shards each model where it goes to the card, or where its optimizer is made if it was built there.

    The first of the cards is run, in a process group that sends nothing, until the patches are undone.
    """

    def __init__(
        self, n_cards: int, blocks_of: Callable[[Any], Iterable[torch.nn.Module]], patches: Patches
    ) -> None:
        self._n_cards, self._blocks_of = n_cards, blocks_of
        self._n_models = 0
        self._untrained: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._why = ""
        for name in ("cuda", "to"):
            patches.set(torch.nn.Module, name, self._moved_by(getattr(torch.nn.Module, name)))
        patches.set(torch.optim.Optimizer, "__init__", self._trained_by(torch.optim.Optimizer.__init__))

    def problem(self) -> str:
        """Return why there is no figure; '' if every trained model was sharded, and nothing else."""
        idle = "" if self._n_models else "no optimizer trains a model"
        return self._why or (_UNTRAINED if self._untrained else idle)

    def _moved_by(self, move: Callable[..., Any]) -> Callable[..., Any]:
        def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
            device = "cuda" if move.__name__ == "cuda" else torch._C._nn._parse_to(*args, **kwargs)[0]
            if device is not None and torch.device(device).type not in ("cpu", "meta"):
                self._shard(module)
            return move(module, *args, **kwargs)

        return moved

    def _trained_by(self, init: Callable[..., None]) -> Callable[..., None]:
        def trained(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            groups = [group["params"] for group in optimizer.param_groups]
            modules = tracked_objects(lambda kind: issubclass(kind, torch.nn.Module))
            homes = {id(each): (home, name) for home in modules for name, each in home._parameters.items()}
            places = [[homes.get(id(each)) for each in group] for group in groups]
            if not all(map(all, places)):
                self._why = _CAPTURED
                return
            given = {id(each) for group in groups for each in group}
            for group in groups:
                group.clear()  # a whole parameter lasts until its shard is there
            parts = {id(child) for each in modules for child in each.children()}
            for module in modules:
                if id(module) not in parts and not given.isdisjoint(map(id, module.parameters())):
                    self._shard(module)
            for group, homes_of_group in zip(groups, places, strict=True):
                group += [getattr(*place) for place in homes_of_group if place is not None]
            self._see([each for group in groups for each in group])

        return trained

    def _see(self, trained: list[Any]) -> None:
        from torch.distributed.tensor import DTensor

        if not all(isinstance(each, DTensor) for each in trained):
            self._why = self._why or _NO_BLOCKS
        ids = set(map(id, trained))
        for number, model in [(number, find()) for number, find in self._untrained.items()]:
            if model is not None and not ids.isdisjoint(map(id, model.parameters())):
                del self._untrained[number]

    def _shard(self, model: torch.nn.Module) -> None:
        """Shard each block and then the whole, as the author would; a model without blocks stays whole."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        blocks = [*self._blocks_of(model)] if any(each.requires_grad for each in model.parameters()) else []
        if isinstance(model, FSDPModule) or not blocks:
            return
        if not self._n_models:
            if torch.distributed.is_initialized():
                self._why = "the program runs on several cards already"
                return
            torch.distributed.init_process_group("nccl", rank=0, world_size=self._n_cards)
        for module in (*blocks, model):
            if not isinstance(module, FSDPModule):
                fully_shard(module)
        self._n_models += 1
        self._untrained[self._n_models] = weakref.ref(model)
