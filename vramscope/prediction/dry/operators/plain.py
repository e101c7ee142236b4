"""Operators that take their outputs on CUDA and nothing else.

They stand in ``plain.tsv``. Each was run on many inputs, of several shapes and types, by torch's genuine
allocator.
"""

from vramscope.package_data import rows
from vramscope.prediction.dry.operators import Row

_SOURCE = "every input that was tried on the genuine allocator"

ROWS = {f"aten::{name}": Row(_SOURCE) for (name,) in rows(__file__, "plain.tsv")}
