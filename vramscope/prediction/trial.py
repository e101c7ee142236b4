"""One trial of a program: which program is run dry, for which card, how far, and what is changed in it."""

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramscope.errors import CaptureError, UsageError
from vramscope.model.cards import card_named, fitting_name, names_near
from vramscope.prediction.cards import HARDWARE, CardRoom, Hardware
from vramscope.units import parse_bytes

if TYPE_CHECKING:
    from vramscope.model.prediction import ChangedAnswer
    from vramscope.prediction.script import Script

DEFAULT_CARD = "H100"
UNLIMITED_BYTES = 1 << 50
"""The capacity of a card on which no program runs out of memory."""
_USUAL_STEPS = 3


@dataclass(frozen=True, slots=True)
class DryChange:
    """Everything that is done to one run."""

    is_autocast: bool = False
    """Forward and loss run under ``torch.autocast`` in bfloat16."""
    checkpointed: int | None = None
    """Number of blocks that are checkpointed, in the order of forward; -1 for all, None for no change."""
    optimizer: str = ""
    """``fused``, ``momentum``, ``loop`` or ``8bit`` (bitsandbytes) for Adam and AdamW; '' for no change."""
    accumulated: int = 1
    """Optimizers step after so many calls of ``step()``."""
    adapter_rank: int = 0
    """Rank of the adapters (LoRA) that are trained in the place of all parameters; 0 for no change."""
    n_cards: int = 1
    """Cards over which FSDP2 shards each model that is trained; 1 for no change."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to try: a dry run of a program, and the others that its answer takes."""

    card: str = DEFAULT_CARD
    capacity: str | int | None = None
    """The bytes of the card, instead of what it has."""
    steps: int | None = _USUAL_STEPS
    """Optimizer steps after which the program is stopped; None lets it run to its end."""
    ranks: int | None = None
    """The number of ranks of a program that runs on several cards."""
    directory: str | os.PathLike[str] | None = None
    """Where the recording goes; a new temporary folder if None."""
    name: str = "the program"
    """The program as the user names it."""
    script: "Script | None" = None
    """The script that is run; None for a function."""
    arguments: tuple[str, ...] = ()
    """The arguments of the script."""
    change: DryChange | None = None
    """What is changed in the program from outside."""
    answer: "ChangedAnswer | None" = None
    """What one place of the program is answered instead of what the first run answers."""
    is_quiet: bool = True
    """Whether what a script prints is dropped; else it goes to stderr."""
    is_as_cuda: bool = False
    """Whether tensors that the program makes without a device lie on the card."""
    measures_need: bool = True
    """Whether a program that runs out of memory is run again without a limit, to know what it needs."""

    @property
    def options(self) -> str:
        """The options of ``vramscope predict`` beside the card; without those that are usual."""
        is_usual = self.steps in (None, _USUAL_STEPS)
        words = [] if is_usual else ["--steps", str(self.steps)]
        words += [] if self.ranks is None else ["--ranks", str(self.ranks)]
        return " ".join([*words, *(["--as-cuda"] if self.is_as_cuda else [])])

    def check(self) -> None:
        """Raise UsageError or CaptureError where this cannot be tried at all."""
        if importlib.util.find_spec("torch") is None:
            raise CaptureError('a dry run needs torch: pip install "vramscope[torch]"')
        if self.steps is not None and self.steps < 1:
            raise UsageError("steps: at least 1")
        if self.ranks is not None and self.ranks < 1:
            raise UsageError("ranks: at least 1")
        card_of(self.card, self.capacity)


def card_of(name: str, capacity: str | int | None) -> tuple[Hardware, int]:
    """The card that the words name, and its bytes or those of *capacity*; raises UsageError."""
    names = {one.name: one for one in HARDWARE}
    chosen = fitting_name(name, names)
    card = None if chosen is None else card_named(chosen)
    if chosen is None or card is None:
        near = names_near(name, names)
        nearest = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(f"no card {name!r}; {nearest}There is: {', '.join(names)}")
    try:
        return names[chosen], card.total_bytes if capacity is None else parse_bytes(capacity)
    except ValueError as error:
        raise UsageError(f"capacity: {error}") from None


def room_of(name: str, capacity: str | int | None) -> CardRoom:
    """The card that the words name, with the capacity instead of its own; raises UsageError."""
    hardware, total_bytes = card_of(name, capacity)
    card = card_named(hardware.name)
    most_bytes = 0 if card is None or capacity is not None else card.most_bytes
    return CardRoom(hardware.name, total_bytes, hardware.context_bytes, hardware.capability, most_bytes)


def rooms() -> tuple[CardRoom, ...]:
    """Every card for which a program can be run dry, the smallest first."""
    return tuple(room_of(each.name, None) for each in HARDWARE)
