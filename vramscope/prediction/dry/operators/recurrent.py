"""Recurrent layers in cuDNN: one operator with a reserve for its backward; its workspace is not known.

The sizes of reserves were read off 1,152 layers on an H100 (cuDNN 9.19): to 60 bytes without dropout, and up
to 2.4 % below with it. Without cuDNN a layer runs as torch's own cells.
"""

from collections.abc import Callable
from typing import Any

import torch

from vramscope.prediction.dry.operators import Call, OwnMemory, Row

_SOURCE = "aten/src/ATen/native/cudnn/RNN.cpp; reserves as measured on an H100 with cuDNN 9.19"
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_KEPT_OF_A_LAYER = (1, 1, 5, 6)
"""The results of each step that a layer keeps, by the mode: its gates and states."""
_DROPOUT_BYTES = 24
"""The random state of one thread of the card."""


def why_recurrent() -> str:
    """Return why the memory of a recurrent layer is unknown."""
    if torch.backends.cudnn.enabled:
        return "cuDNN chooses the workspace of a recurrent layer at run time"
    return "what torch's own kernels for recurrent layers take is not in the table"


def _layer(name: str) -> Callable[..., Any]:
    """``aten::lstm.input`` and its like, as they choose on the card."""
    own = getattr(torch.ops.aten, name).input

    def layer(source: Any, states: Any, weights: Any, *settings: Any) -> Any:
        if not torch.backends.cudnn.enabled:
            return own.decompose(source, states, weights, *settings)
        has_biases, n_layers, dropout, train, bidirectional, batch_first = settings
        hidden, cell = states if name == "lstm" else (states, None)
        size = hidden.size(-1) if cell is None else cell.size(-1)
        projected = hidden.size(-1) if hidden.size(-1) != size else 0
        stride = (4 if has_biases else 2) + bool(projected)
        kept: Any = (
            _MODES[name],
            size,
            projected,
            n_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            [],
            None,
        )
        out, hidden, cell, _, _ = torch.ops.aten._cudnn_rnn(
            source, weights, stride, None, hidden, cell, *kept
        )
        return (out, hidden, cell) if name == "lstm" else (out, hidden)

    return layer


def _forward_shapes(source: Any, weights: Any, *settings: Any) -> Any:
    hidden, cell, mode, size, projected, n_layers, batch_first, dropout, train, bidirectional = settings[2:12]
    length, batch = (source.size(1), source.size(0)) if batch_first else (source.size(0), source.size(1))
    n_directions = 2 if bidirectional else 1
    width = (projected or size) * n_directions
    out = source.new_empty((batch, length, width) if batch_first else (length, batch, width))
    numbers = length * batch * size * n_directions
    kept = (_KEPT_OF_A_LAYER[mode] * n_layers + n_layers - 1) * numbers * source.element_size()
    masks = (n_layers - 1) * -(-numbers // 8) if dropout else 0
    reserve = source.new_empty(kept + masks + 256 if train else 0, dtype=torch.uint8)
    # nn.LSTM and its like lay their weights in one buffer themselves, but for bfloat16.
    buffer = source.new_empty(sum(one.numel() for one in weights) if source.dtype == torch.bfloat16 else 0)
    state = hidden.new_empty(hidden.shape)
    return out, state, source.new_empty(0 if cell is None else cell.shape), reserve, buffer


def _backward_shapes(source: Any, weights: Any, *settings: Any) -> Any:
    hidden, cell = settings[2:4]
    gradients = [torch.empty_like(one) for one in weights]
    other = source.new_empty(0) if cell is None else torch.empty_like(cell)
    return torch.empty_like(source), torch.empty_like(hidden), other, gradients


def _forward(call: Call) -> OwnMemory:
    """A random state for dropout is kept for all layers of the process."""
    so_far = call.so_far
    if not (call.given("dropout", 0.0) and call.given("train")) or so_far.has_random_states:
        return OwnMemory()
    so_far.has_random_states = True
    n_threads = so_far.card.n_multiprocessors * so_far.card.threads_per_multiprocessor
    return OwnMemory(kept=(_DROPOUT_BYTES * n_threads,))


ROWS = {
    "aten::_cudnn_rnn": Row(_SOURCE, _forward),
    **{f"aten::{name}": Row(_SOURCE) for name in (*_MODES, "_cudnn_rnn_backward", "_thnn_fused_lstm_cell")},
}

REPLACEMENTS = {f"{name}.input": _layer(name) for name in _MODES}

SHAPES = {
    torch.ops.aten._cudnn_rnn.default: _forward_shapes,
    torch.ops.aten._cudnn_rnn_backward.default: _backward_shapes,
}
