"""What optimizers, scalers and clipping run over lists of tensors."""

import torch

from vramscope.prediction.dry.operators import Call, Extra, Row

_NORM = "aten/src/ATen/native/cuda/ForeachReduceOp.cu"
_CHUNK = 65_536


def _norm(call: Call) -> Extra:
    """A partial result for each chunk, as many for every tensor as the largest has."""
    tensors = call.args[0]
    chunks = max((-(-one.numel() // _CHUNK) for one in tensors), default=0)
    size = 8 if any(one.dtype == torch.float64 for one in tensors) else 4
    return Extra(before=(size * len(tensors) * chunks,)) if chunks else Extra()


ROWS = {"aten::_foreach_norm": Row(_NORM, _norm)}
