"""Measures the weights of attention that layers compute only to return them."""

import numpy as np

from vramscope.analysis import asking
from vramscope.analysis.categories.by_lifetime import lives_of
from vramscope.analysis.folding import heaviest_line, passes_through
from vramscope.analysis.lifetimes import lifetimes
from vramscope.analysis.timeline import timeline
from vramscope.analysis.worded import worded
from vramscope.model.codes import FindingKind
from vramscope.model.finding import Finding
from vramscope.model.marks import Phase
from vramscope.model.recording import Recording
from vramscope.units import format_share

_LEAST_SHARE, _LEAST_BYTES = 0.1, 1 << 20
_FUNCTIONS = "torch/nn/functional.py"


def attention_weights(recording: Recording) -> list[Finding]:
    """Find whether weights of ``MultiheadAttention``, and blocks of their size, are much of the peak.

    It calls softmax itself only where ``need_weights`` is True, which is the default.
    """
    found, level = lifetimes(recording), timeline(recording).allocated_bytes
    at = int(level.argmax())
    within, softmax = (
        passes_through(recording.stacks, name, _FUNCTIONS)[found.stack_id]
        for name in ("multi_head_attention_forward", "softmax")
    )
    sizes = np.unique(found.size[within & softmax])
    in_backward = lives_of(recording, found).phase == Phase.BACKWARD
    rows = found.allocated_at(at) & np.isin(found.size, sizes) & (within | in_backward)
    n_bytes = int(found.block_size[rows].sum())
    if n_bytes < max(_LEAST_BYTES, _LEAST_SHARE * int(level[at])):
        return []
    frame = heaviest_line(
        recording.stacks, found.stack_id[within & softmax], found.block_size[within & softmax]
    )
    share = format_share(n_bytes, int(level[at]), 0)
    return [worded(FindingKind.ATTENTION_WEIGHTS, n_bytes, frame, of_peak=share, block_bytes=int(sizes[-1]))]


ANALYSIS = asking(
    "How much of the peak are weights of attention that are only returned?", attention_weights, list
)
