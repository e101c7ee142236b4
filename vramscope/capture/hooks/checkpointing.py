"""Sees whether a model's checkpointing is switched on although nothing is ever recomputed."""

from typing import Any

import torch

from vramscope.capture.hooks.modules import listed
from vramscope.model.codes import NoteCode
from vramscope.model.marks import Note

_SWITCHES = ("gradient_checkpointing", "grad_checkpointing", "use_gradient_checkpointing", "use_checkpoint")
"""Attributes of transformers, timm and others; their modules checkpoint, or not, by other conditions too."""


class Checkpointing:
    """The modules of root modules that trained whose checkpointing is on."""

    __slots__ = ("_n_in_eval_mode", "_names", "_roots", "has_recomputed")

    def __init__(self) -> None:
        self.has_recomputed = False
        self._roots: set[int] = set()
        self._names: list[str] = []
        self._n_in_eval_mode = 0

    def see(self, root: Any) -> None:
        """Look at a root module when its first forward with gradients begins."""
        if id(root) in self._roots or self.has_recomputed or not torch.is_grad_enabled():
            return
        self._roots.add(id(root))
        if not any(parameter.requires_grad for _, parameter in listed(root.named_parameters)):
            return
        switched = [
            (name, module)
            for name, module in listed(root.named_modules)
            if any(vars(module).get(switch) is True for switch in _SWITCHES)
        ]
        # A model is switched on with its layers, which checkpoint.
        inner = [each for each in switched if not any(_is_in(name, each[0]) for name, _ in switched)]
        self._names += [name or "the model" for name, _ in inner]
        self._n_in_eval_mode += sum(not module.training for _, module in inner)

    def notes(self) -> list[Note]:
        """A note, if checkpointing is on and nothing was recomputed."""
        if self.has_recomputed or not self._names:
            return []
        first, last, n = self._names[0], self._names[-1], len(self._names)
        where = first if n == 1 else f"{n} modules ({first} … {last})"
        modes = ", which run in eval mode" if self._n_in_eval_mode == n else ""
        text = f"checkpointing is switched on in {where}{modes}, and recomputes nothing"
        return [Note(NoteCode.CHECKPOINTS_IDLE, text, self._n_in_eval_mode)]


def _is_in(name: str, outer: str) -> bool:
    return name != outer and name.startswith(f"{outer}." if outer else "")
