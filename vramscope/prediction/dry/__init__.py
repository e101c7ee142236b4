"""Will it fit? The program's own training steps without computing, with the memory shape of CUDA.

Tensors on ``cuda`` have shapes and no content; every storage's birth and death, and what operators take
beyond their outputs, goes through our model of CUDA's caching allocator. What comes out is an ordinary
recording, source ``predicted``.
"""

from vramscope.prediction.dry.doubts import own_line_of
from vramscope.prediction.dry.dry_capture import Predicted
from vramscope.prediction.dry.mode import OutOfMemoryError, Unknown
from vramscope.prediction.dry.shim.fake_cuda import prepare
from vramscope.prediction.dry.values.choices import Enough

__all__ = ["Enough", "OutOfMemoryError", "Predicted", "Unknown", "own_line_of", "prepare"]
