"""How many bytes does torch find on a card?"""

import re
from dataclasses import dataclass

BASIS = (
    "a card's bytes as torch gives them in published error messages, of several the least: drivers differ by "
    "up to 0.3 GiB, so an estimate"
)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card."""

    name: str
    sold_as_gb: int
    total_bytes: int
    """As ``torch.cuda.mem_get_info()[1]``: less than nvidia-smi shows, as the driver keeps some."""

    @property
    def label(self) -> str:
        """With what it is sold as, for those whose names do not say it."""
        return self.name if self.name.endswith("GB") else f"{self.name} {self.sold_as_gb} GB"

    @property
    def phrase(self) -> str:
        """As in a sentence: ``a 16 GB T4``."""
        name = self.name.removesuffix(f" {self.sold_as_gb} GB")
        article = "an" if str(self.sold_as_gb).startswith("8") else "a"
        return f"{article} {self.sold_as_gb} GB {name}"


CARDS = tuple(
    Card(name, sold_as, round(gib * _GIB))
    for name, sold_as, gib in (
        ("T4", 16, 14.56),
        ("RTX 4080", 16, 15.6),
        ("L4/A10G", 24, 21.95),
        ("RTX 3090/4090", 24, 23.5),
        ("RTX 5090", 32, 31.3),
        ("V100 32 GB", 32, 31.7),
        ("A100 40 GB", 40, 39.3),
        ("L40S", 48, 44.3),
        ("RTX A6000", 48, 47.4),
        ("A100/H100 80 GB", 80, 79.1),
        ("RTX PRO 6000", 96, 94.9),
        ("H200", 141, 139.7),
        ("B200", 180, 178.3),
        ("MI300X", 192, 191.4),
    )
)
"""By their bytes."""


def card_named(text: str) -> Card | None:
    """``'4090'``, ``'a100-40'``, ``'H200'``: the card whose name has all of these words; None where none has,
    the smallest where several have."""
    asked = _words(text)
    known = ((card, _words(card.label)) for card in CARDS)
    return next((card for card, words in known if asked and asked <= words), None)


def _words(text: str) -> set[str]:
    """Small letters and digits, without what every name has."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"gb\b", " ", text.lower()))) - {"nvidia", "rtx", "geforce"}
