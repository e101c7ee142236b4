"""What of a card decides how much memory torch's operators take on it.

The number of bytes of a card is in ``model/cards.py``; here is what the libraries ask it: reductions
how many threads it runs at once, cuBLAS and attention which generation it is.
"""

import re
from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Hardware:
    """The properties of one kind of card that matter; from NVIDIA's data sheets and the CUDA guide."""

    name: str
    capability: tuple[int, int]
    """Compute capability, as ``torch.cuda.get_device_capability()``."""
    n_multiprocessors: int
    threads_per_multiprocessor: int
    context_bytes: int
    """What CUDA takes for a process beside torch's allocator: about, as drivers differ."""

    @property
    def workspace_bytes(self) -> int:
        """What cuBLAS gets for each thread and stream that multiplies matrices.

        ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 4096 KiB twice and 16 KiB eight times, from Hopper on
        32 MiB; so it was on the stand-in with each capability, torch 2.13 to 2.15.
        """
        return 32 * _MIB if self.capability[0] >= 9 else 8_519_680


HARDWARE = tuple(
    Hardware(name, capability, n, threads, context * _MIB)
    for name, capability, n, threads, context in (
        ("T4", (7, 5), 40, 1024, 300),
        ("RTX 4080", (8, 9), 76, 1536, 400),
        ("L4", (8, 9), 58, 1536, 400),
        ("A10G", (8, 6), 80, 1536, 400),
        ("RTX 3090", (8, 6), 82, 1536, 400),
        ("RTX 4090", (8, 9), 128, 1536, 400),
        ("RTX 5090", (12, 0), 170, 1536, 500),
        ("V100 32 GB", (7, 0), 80, 2048, 350),
        ("A100 40 GB", (8, 0), 108, 2048, 450),
        ("A100 80 GB", (8, 0), 108, 2048, 450),
        ("L40S", (8, 9), 142, 1536, 450),
        ("RTX A6000", (8, 6), 84, 1536, 400),
        ("H100 80 GB", (9, 0), 132, 2048, 500),
        ("RTX PRO 6000", (12, 0), 188, 1536, 500),
        ("H200", (9, 0), 132, 2048, 550),
        ("B200", (10, 0), 148, 2048, 600),
    )
)
"""Every name is one that ``model/cards.py`` understands."""

H100 = next(one for one in HARDWARE if one.name == "H100 80 GB")


def words(text: str) -> set[str]:
    """Small letters and digits of a card's name, without what every name has."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"gb\b", " ", text.lower()))) - {"nvidia", "rtx", "geforce"}
