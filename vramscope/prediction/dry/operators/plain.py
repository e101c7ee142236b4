"""Operators that take their outputs on CUDA and nothing else.

They stand in ``groups.tsv``. Each was run on many inputs, of several shapes and types, by torch's genuine
allocator.
"""

from vramscope.prediction.dry.operators import grouped

_SOURCE = "every input that was tried on the genuine allocator"

ROWS = grouped("plain", _SOURCE)
