"""The strategy of computing head and loss in chunks of the batch, each made again in its backward."""

from collections.abc import Iterator

import numpy as np

from vramscope.analysis.logits import of_logits
from vramscope.analysis.strategies.trials import SizeChange, StrategyInput, StrategyTrial, scaled
from vramscope.model.marks import Category, Phase

_CHUNKS = 8
_LEAST_SHARE = 0.2
_PHASES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


def loss_in_chunks(run: StrategyInput) -> Iterator[StrategyTrial]:
    """Keep one chunk of the logits at a time, where these are a fifth of the peak."""
    rows = of_logits(run.recording, run.found) & np.isin(run.born_in, _PHASES)
    at = int(run.level_bytes.argmax())
    n_bytes = int(run.found.block_size[rows & run.found.allocated_at(at)].sum())
    if n_bytes < _LEAST_SHARE * run.level_bytes[at] or not n_bytes:
        return
    # Each chunk adds to the gradient of the head, which is there twice meanwhile.
    head = int(run.found.block_size[run.category == Category.PARAMETER].max(initial=0))
    extra = np.where(np.isin(run.phase, (Phase.LOSS, Phase.BACKWARD)), head, 0)
    yield StrategyTrial(
        "loss_in_chunks",
        scaled(run, (rows, 1 / _CHUNKS)),
        extra,
        {"chunks": _CHUNKS},
        least=SizeChange(scaled(run, (rows, 0.0))),
        most=SizeChange(scaled(run, (rows, 2 / _CHUNKS)), 2 * extra),
    )
