"""What the hooks report becomes labels and looks for growth: the same in every source that knows storages."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from vramscope.capture import Failed
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks import Listener
from vramscope.capture.hooks.modules import ModuleLog, modules_of, tensors_of
from vramscope.capture.labels import AddLabels, Labeler
from vramscope.capture.torch_versions import allocator_conf
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
        if not any(parameter.requires_grad for _, parameter in tensors_of(root, "_parameters")):
            return
        switched = [
            (name, module)
            for name, module in modules_of(root)
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


class LabelingListener(Listener):
    """The part of a source that listens to the hooks; the marks are the source's own."""

    def __init__(self, failed: Failed, modules: ModuleLog, watch: Watch, add_labels: AddLabels) -> None:
        """Report errors to *failed*, label by *add_labels*, and have the *watch* look after each phase."""
        self.failed = failed
        self.torch = str(torch.__version__)
        conf = allocator_conf(self.torch)
        self.settings: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {}
        self.modules = modules
        self.watch = watch
        self.checkpointing = Checkpointing()
        self._labeler = Labeler(add_labels, modules)

    @property
    def mesh(self) -> Mapping[str, int]:
        """The coordinates of this process in the mesh of the program's parameters."""
        return self._labeler.mesh

    def forward_begins(self, module: Any) -> None:
        """Label the parameters and buffers of a root module by name."""
        self._labeler.module(module)
        self.checkpointing.see(module)

    def forward_ends(self, inputs: Any, result: Any) -> None:
        """Label the inputs and outputs of a root module."""
        self._labeler.inputs(inputs)
        self._labeler.outputs(result)
        self._see_result(result)
        self.watch.tick("forward", 0, sys._getframe(1))

    def _see_result(self, result: Any) -> None:
        """Look for storages that no operator showed in what a root module returned."""

    def backward_ends(self) -> None:
        """Label the gradients after a backward pass."""
        self._labeler.gradients()
        self.watch.tick("backward", 0, sys._getframe(1))

    def step_begins(self, optimizer: Any) -> None:
        """Label an optimizer's parameters and gradients, including those of no recorded module."""
        self._labeler.parameters(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        """Label the optimizer's state."""
        self._labeler.optimizer_state(optimizer)
        self.watch.tick("optimizer", id(optimizer), sys._getframe(1))
