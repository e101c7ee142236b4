"""What of a card decides how much memory torch's operators take on it.

The number of bytes of a card is in ``model/cards.py``, the tables of both in ``cards.tsv`` beside it; here is
what the libraries ask: reductions how many threads it runs at once, cuBLAS and attention which generation it
is.

Another card has other libraries: cuBLAS's workspace, buffers of reductions and the kernels of attention
depend on its generation. What was run for one card is therefore an estimate for the others: an interval. The
cards that lie inside of it need a dry run of their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vramscope.model import cards
from vramscope.model.prediction import Headroom, Need, OnCard, Prediction
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


_ALIKE = 0.03
"""Share by which peaks differ at most between cards that choose the same kernels."""
_OLDER = 0.30
"""The same between cards of which one has no flash attention and no bfloat16 (before Ampere)."""
_LIBRARIES_BYTES = 96 << 20
"""Workspaces differ by 24 MiB for each thread that multiplies matrices, of which a training has two."""
_AMPERE = (8, 0)


@dataclass(frozen=True, slots=True)
class CardRoom:
    """A card as the dry run knows it."""

    name: str
    total_bytes: int
    """Bytes as torch finds them."""
    context_bytes: int
    """Bytes that CUDA takes beside torch's allocator, about."""
    capability: tuple[int, int]
    most_bytes: int = 0
    """The most that torch finds, where that differs from driver to driver; else 0."""

    @property
    def room_bytes(self) -> int:
        """Bytes that the allocator can reserve: at least 1."""
        return max(self.total_bytes - self.context_bytes, 1)

    @property
    def most_room_bytes(self) -> int:
        """The same where the driver keeps the least."""
        return max(self.most_bytes - self.context_bytes, self.room_bytes)


def with_cards(prediction: Prediction, cards: Iterable[CardRoom]) -> Prediction:
    """Return the prediction with a verdict for each of *cards*, as far as its dry runs decide it."""
    cards = tuple(cards)
    own = next(each for each in cards if each.name == prediction.card)
    # With a capacity of its own the card as it is sold is one of the others.
    is_as_sold = own.total_bytes == prediction.capacity_bytes
    own = replace(own, total_bytes=prediction.capacity_bytes, most_bytes=own.most_bytes if is_as_sold else 0)
    fits, differs = prediction.fits, own.most_room_bytes > own.room_bytes
    if fits is False and differs and prediction.need.fits(own.most_room_bytes) is not False:
        fits = None  # with another driver the card may have room
    return replace(prediction, fits=fits, cards=on_cards(prediction.need, own, fits, cards))


def on_cards(
    need: Need, run_for: CardRoom, fits: bool | None, cards: Iterable[CardRoom]
) -> tuple[OnCard, ...]:
    """Return a verdict for each card, the smallest first; *fits* is that of the card it was run for."""
    ordered = sorted(cards, key=lambda card: (card.total_bytes, card.name))
    return tuple(
        own_verdict(need, card, fits) if card == run_for else _estimated(need, run_for, card)
        for card in ordered
    )


def own_verdict(need: Need, card: CardRoom, fits: bool | None) -> OnCard:
    """Return the verdict for the card that the program was run dry for."""
    most = card.room_bytes - need.reserved_bytes
    headroom = Headroom(None if need.doubt_bytes is None else most - need.doubt_bytes, most)
    return OnCard(card.name, card.total_bytes, fits, headroom if need.is_whole else None, is_own_run=True)


def _estimated(need: Need, run_for: CardRoom, card: CardRoom) -> OnCard:
    older, newer = sorted((card.capability, run_for.capability))
    share = _OLDER if older < _AMPERE <= newer else _ALIKE
    # The allocator releases its cache before it fails, so a card may hold what it would not reserve at ease.
    least = need.allocated_bytes * (1 - share) - _LIBRARIES_BYTES
    most = None
    if need.doubt_bytes is not None and need.is_whole:
        most = (need.reserved_bytes + need.doubt_bytes) * (1 + share) + _LIBRARIES_BYTES
    room = card.room_bytes
    fits = False if card.most_room_bytes < least else True if most is not None and room >= most else None
    headroom = Headroom(
        None if most is None else round(room - most),
        min(round(card.most_room_bytes - least), card.most_room_bytes),
    )
    return OnCard(card.name, card.total_bytes, fits, headroom if need.is_whole else None, is_own_run=False)
