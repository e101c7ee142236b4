"""Sizes of GPU cards in bytes, as torch reports them."""

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
    """Bytes as in ``torch.cuda.mem_get_info()[1]``: the driver keeps some, so nvidia-smi shows more."""

    @property
    def label(self) -> str:
        """The name, with the advertised size if the name does not end with it."""
        return self.name if self.name.endswith("GB") else f"{self.name} {self.sold_as_gb} GB"

    @property
    def phrase(self) -> str:
        """A phrase for a sentence: ``a 16 GB T4``."""
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
"""Known cards, the smallest first."""


def card_named(text: str) -> Card | None:
    """Return the card whose name has all words of *text*, such as ``'4090'``, ``'a100-40'`` or ``'H200'``.

    The smallest card if several match; None if none does.
    """
    asked = _words(text)
    known = ((card, _words(card.label)) for card in CARDS)
    return next((card for card, words in known if asked and asked <= words), None)


def _words(text: str) -> set[str]:
    """Return the words of a name in lower case, without those that many names share."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"gb\b", " ", text.lower()))) - {"nvidia", "rtx", "geforce"}
