"""Which of the known cards hold a program that was run dry for one of them.

Another card has other libraries: cuBLAS's workspace, buffers of reductions and the kernels of attention
depend on its generation. What was run for one card is therefore an estimate for the others: an interval. The
cards that lie inside of it need a dry run of their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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

    @property
    def room_bytes(self) -> int:
        """Bytes that the allocator can reserve: at least 1."""
        return max(self.total_bytes - self.context_bytes, 1)


@dataclass(frozen=True, slots=True)
class Need:
    """What a dry run found that the program needs."""

    allocated_bytes: int
    """Lower bound of the peak of allocated bytes."""
    reserved_bytes: int
    """Lower bound of the peak of reserved bytes."""
    doubt_bytes: int | None
    """Bytes by which both may be higher; None if nothing bounds them."""
    is_whole: bool = True
    """Whether the program went on to the end; False if memory ran out."""


class Headroom(NamedTuple):
    """Bytes left on a card at the peak of reserved memory; negative bytes are missing."""

    least_bytes: int | None
    """None where nothing bounds the need."""
    most_bytes: int


@dataclass(frozen=True, slots=True)
class OnCard:
    """The verdict for one card."""

    card: str
    capacity_bytes: int
    """Bytes as torch finds them."""
    fits: bool | None
    """Whether the program fits; None if that is not known."""
    headroom_bytes: Headroom | None
    """What is left at the peak; None where memory ran out before it."""
    is_own_run: bool
    """Whether the program was run dry for this card; else the verdict follows from a run for another one."""


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
    fits = None
    if card.room_bytes < least:
        fits = False
    elif most is not None and card.room_bytes >= most:
        fits = True
    room = card.room_bytes
    headroom = Headroom(None if most is None else round(room - most), min(round(room - least), room))
    return OnCard(card.name, card.total_bytes, fits, headroom if need.is_whole else None, is_own_run=False)
