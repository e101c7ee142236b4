"""What of a card decides how much memory torch's operators take on it.

The number of bytes of a card is in ``model/cards.py``; here is what the libraries ask it: reductions
how many threads it runs at once, cuBLAS and attention which generation it is.
"""

from dataclasses import dataclass

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
    """What CUDA takes for a process beside torch's allocator: about, as drivers differ."""

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
    Hardware(name, capability, n, threads, context * _MIB)
    for name, capability, n, threads, context in (
        ("RTX 3060 12 GB", (8, 6), 28, 1536, 400),
        ("RTX 3060 8 GB", (8, 6), 28, 1536, 400),
        ("RTX 3070", (8, 6), 46, 1536, 400),
        ("RTX 3070 Ti", (8, 6), 48, 1536, 400),
        ("RTX 3080", (8, 6), 68, 1536, 400),
        ("RTX 3080 12 GB", (8, 6), 70, 1536, 400),
        ("RTX 3080 Ti", (8, 6), 80, 1536, 400),
        ("RTX 4060", (8, 9), 24, 1536, 400),
        ("RTX 4060 Ti 8 GB", (8, 9), 34, 1536, 400),
        ("RTX 4060 Ti 16 GB", (8, 9), 34, 1536, 400),
        ("RTX 4070", (8, 9), 46, 1536, 400),
        ("RTX 4070 Super", (8, 9), 56, 1536, 400),
        ("RTX 4070 Ti", (8, 9), 60, 1536, 400),
        ("RTX 4070 Ti Super", (8, 9), 66, 1536, 400),
        ("RTX 5060", (12, 0), 30, 1536, 500),
        ("RTX 5060 Ti 8 GB", (12, 0), 36, 1536, 500),
        ("RTX 5060 Ti 16 GB", (12, 0), 36, 1536, 500),
        ("RTX 5070", (12, 0), 48, 1536, 500),
        ("RTX 5070 Ti", (12, 0), 70, 1536, 500),
        ("RTX 5080", (12, 0), 84, 1536, 500),
        ("RTX A4000", (8, 6), 48, 1536, 400),
        ("RTX A4500", (8, 6), 56, 1536, 400),
        ("RTX A5000", (8, 6), 64, 1536, 400),
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
        ("MI250", _NOT_OF_NVIDIA, 104, 2048, 500),
        ("MI300X", _NOT_OF_NVIDIA, 304, 2048, 600),
    )
)
"""Every name is one that ``model/cards.py`` understands."""
