"""Recurrent layers in cuDNN: one operator with a reserve for its backward; its workspace is not known.

The sizes of reserves were read off 1,152 layers on an H100 (cuDNN 9.19): to 60 bytes without dropout, and up
to 2.4 % below with it. Without cuDNN a layer runs as torch's own cells.
"""

from collections.abc import Callable
from typing import Any

import torch

from vramscope.prediction.dry.doubts import Certainty
from vramscope.prediction.dry.operators import Call, OwnMemory
from vramscope.prediction.dry.operators.reductions import sum_buffers

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_KEPT_OF_A_LAYER = (1, 1, 5, 6)
"""The results of each step that a layer keeps, by the mode: its gates and states."""
_DROPOUT_BYTES = 24
"""The random state of one thread of the card."""
_WORKSPACE = (Certainty.CANNOT_TELL, "cuDNN chooses the workspace of a recurrent layer at run time")
_aten = torch.ops.aten


def _layer(name: str, kind: str) -> Callable[..., Any]:
    """``aten::lstm.input``, ``aten::lstm.data`` of packed sequences and their like, as chosen on the card."""
    own = getattr(getattr(_aten, name), kind)

    def layer(source: Any, *given: Any) -> Any:
        if not torch.backends.cudnn.enabled:
            # Not own.decompose: the formula in Python multiplies all steps at once, as the host does.
            return own._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, source, *given)
        sizes = given[0].tolist() if kind == "data" else []
        states, weights, *settings = (*given[1:], False) if kind == "data" else given
        has_biases, n_layers, dropout, train, bidirectional, batch_first = settings
        hidden, cell = states if name == "lstm" else (states, None)
        size = hidden.size(-1) if cell is None else cell.size(-1)
        projected = hidden.size(-1) if hidden.size(-1) != size else 0
        stride = (4 if has_biases else 2) + bool(projected)
        kept = (size, projected, n_layers, batch_first, dropout, train, bidirectional, sizes, None)
        found = _aten._cudnn_rnn(source, weights, stride, None, hidden, cell, _MODES[name], *kept)
        return found[: 3 if name == "lstm" else 2]

    return layer


def _forward_shapes(source: Any, weights: Any, *settings: Any) -> Any:
    hidden, cell, mode, size, projected, n_layers, _, dropout, train, bidirectional = settings[2:12]
    n_directions = 2 if bidirectional else 1
    out = source.new_empty((*source.shape[:-1], (projected or size) * n_directions))
    numbers = source.numel() // source.size(-1) * size * n_directions
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
        return OwnMemory(doubt=_WORKSPACE)
    so_far.has_random_states = True
    n_threads = so_far.card.n_multiprocessors * so_far.card.threads_per_multiprocessor
    return OwnMemory(kept=(_DROPOUT_BYTES * n_threads,), doubt=_WORKSPACE)


def _gru_shapes(_gates: Any, _others: Any, hidden: Any, *_biases: Any) -> Any:
    return torch.empty_like(hidden), hidden.new_empty((hidden.size(0), 5 * hidden.size(1)))


def _gru_backward_shapes(gradient: Any, workspace: Any, has_biases: bool) -> Any:
    size = workspace.size(0), workspace.size(1) // 5 * 3
    biases = [workspace.new_empty(size[1:]) if has_biases else None for _ in range(2)]
    return workspace.new_empty(size), workspace.new_empty(size), torch.empty_like(gradient), *biases


def _cell_backward(call: Call) -> OwnMemory:
    """Gradients of biases are sums over those of gates: one of both for an LSTM, one each for a GRU."""
    out, card = call.out, call.so_far.card
    pairs = ((0, 3), (1, 4)) if len(out) == 5 else ((0, 2),)
    sums = [sum_buffers(out[one], out[two], {0}, card) for one, two in pairs if out[two] is not None]
    return OwnMemory(after=max(sums, key=sum, default=()))


REPLACEMENTS = {f"{name}.{kind}": _layer(name, kind) for name in _MODES for kind in ("input", "data")}

SHAPES = {
    _aten._cudnn_rnn.default: _forward_shapes,
    _aten._cudnn_rnn_backward.default: _backward_shapes,
    _aten._thnn_fused_lstm_cell.default: lambda gates, _, c, *__: tuple(map(torch.empty_like, (c, c, gates))),
    _aten._thnn_fused_gru_cell.default: _gru_shapes,
    _aten._thnn_fused_gru_cell_backward.default: _gru_backward_shapes,
}
