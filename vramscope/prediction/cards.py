"""What of a card decides how much memory torch's operators take on it.

The number of bytes of a card is in ``model/cards.py``, the tables of both in ``cards.tsv`` beside it; here is
what the libraries ask: reductions how many threads it runs at once, cuBLAS and attention which generation it
is.
"""

from dataclasses import dataclass

from vramscope.model import cards
from vramscope.package_data import rows

_MIB = 1 << 20
_NOT_OF_NVIDIA = (0, 0)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The properties of one kind of card that matter; from NVIDIA's data sheets and the CUDA guide."""

    name: str
    capability: tuple[int, int]
    """Compute capability, as ``torch.cuda.get_device_capability()``."""
    n_multiprocessors: int
    threads_per_multiprocessor: int
    context_bytes: int
    """What CUDA takes for a process beside torch's allocator: about, as drivers differ.

    On an H100 (driver 580, torch 2.11) the context alone is 518 MiB; most of 190 trainings had 742 with
    cuBLAS, those with a CUDA graph 812, with NCCL 916. An H200 is the same chip. Others: without libraries.
    """

    @property
    def is_checked(self) -> bool:
        """Whether the tables of operators were made for such cards: for NVIDIA's, not for AMD's."""
        return self.capability > _NOT_OF_NVIDIA

    @property
    def workspace_bytes(self) -> int:
        """What cuBLAS gets for each thread and stream that multiplies matrices.

        ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 4096 KiB twice and 16 KiB eight times, from Hopper on
        32 MiB; so it was on the stand-in with each capability, torch 2.13 to 2.15.
        """
        return 32 * _MIB if self.capability[0] >= 9 else 8_519_680


HARDWARE = tuple(
    Hardware(name, (int(capability[:-2]), int(capability[-1])), int(n), int(threads), int(context) * _MIB)
    for name, capability, n, threads, context in rows(cards.__file__, "cards.tsv", "hardware")
)
"""Every name is one that ``model/cards.py`` understands."""
