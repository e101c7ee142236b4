"""The keys of ``PYTORCH_CUDA_ALLOC_CONF`` that a replay understands, and since when torch has them."""

import re

from vramscope.allocator.settings import CONF_KEYS
from vramscope.errors import UsageError

_SINCE = {
    "large_segment_size_mb": (2, 11),
    "per_process_memory_fraction": (2, 10),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The first torch version that knows each key; an older one refuses to start with it."""
_OTHERS = re.compile(
    r"backend|pinned_\w+|release_lock_on_\w+|graph_capture_record_stream_reuse|throw_on_cudamalloc_oom"
    r"|expandable_segments_reserve(?:_by_class)?"
)
"""Keys that move no block; a reserve is virtual address space, and holds any block of usual size."""


def refuse_unknown(conf: str, torch: str) -> None:
    """Raise UsageError if *conf* has a key that this torch version does not know."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    for key in re.findall(r"(?:^|,)\s*([^:,\[\]]+?)\s*(?=[:,]|$)", re.sub(r"\[[^\]]*\]", "", conf)):
        if key not in CONF_KEYS and not _OTHERS.fullmatch(key):
            raise UsageError(f"no setting {key!r} of the allocator; there are: {', '.join(CONF_KEYS)}")
        if version and version < _SINCE.get(key, (0, 0)):
            since = ".".join(map(str, _SINCE[key]))
            raise UsageError(f"{key}: torch has it since {since}, and this recording is of {torch}")
