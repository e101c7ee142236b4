"""What the hooks report becomes labels and looks for growth: the same in every source that knows storages."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from vramscope.capture import Failed
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.hooks import Listener
from vramscope.capture.hooks.checkpointing import Checkpointing
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.capture.labels import AddLabels, Labeler
from vramscope.capture.torch_versions.allocator_settings import allocator_conf


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
