"""The current stream of a dry run: the program's own, and in backward that of the forward."""

import bisect
from typing import Any, NamedTuple

import torch


class Chosen(NamedTuple):
    """A stream, and the backward in which it was made the current one; −1 outside of any."""

    stream: int = 0
    backward: int = -1


class CurrentStream:
    """Knows which stream an operator runs on.

    Autograd runs a node on the stream that was current when the forward made it, whatever is current where
    ``backward()`` is called (torch/csrc/autograd/engine.cpp). A thread's nodes are numbered in their order.
    """

    def __init__(self) -> None:
        self.chosen = Chosen()
        self._first_nodes = [0]
        """The number of the first node since each change of the stream, ascending."""
        self._streams = [0]

    def choose(self, stream: int) -> None:
        """Make *stream* the current one, as ``torch.cuda.set_stream`` does."""
        self.restore(Chosen(stream, torch._C._current_graph_task_id()))

    def restore(self, chosen: Chosen) -> None:
        """Make the stream the current one that was so before."""
        self.chosen = chosen
        node, stream = torch._C._autograd._get_sequence_nr(), self.now()
        if node == self._first_nodes[-1]:
            self._streams[-1] = stream
        elif stream != self._streams[-1]:
            self._first_nodes.append(node)
            self._streams.append(stream)

    def now(self) -> int:
        """The stream of the operator that runs."""
        backward = torch._C._current_graph_task_id()
        if backward in (-1, self.chosen.backward):
            return self.chosen.stream
        return self._of_node(torch._C._current_autograd_node())

    def _of_node(self, node: Any) -> int:
        # What accumulates gradients has the largest number, and runs where the training does.
        number = -1 if node is None else node._sequence_nr()
        if not 0 <= number < torch.iinfo(torch.int64).max:
            return self.chosen.stream
        return self._streams[bisect.bisect_right(self._first_nodes, number) - 1]
