"""Sizes of GPU cards in bytes, as torch reports them.

They are read from the messages of torch that people publish when memory runs out: "GPU 0 has a total capacity
of 15.47 GiB". A newer driver keeps more for itself, and on Windows a card has all that it is sold with.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

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
    most_bytes: int = 0
    """The most that torch reports for such a card; 0 where only one figure is known."""

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


_OWNED = (
    # Least of the 8 GB cards: 7.60; an RTX 3070 had 7.76 to 7.78.
    ("RTX 3070", 8, 7.60),
    ("RTX 3070 Ti", 8, 7.60),
    ("RTX 4060", 8, 7.60),
    ("RTX 4060 Ti 8 GB", 8, 7.60),
    ("RTX 5060", 8, 7.60),
    ("RTX 5060 Ti 8 GB", 8, 7.60),
    # 9.78, of an older driver; those of 2026 keep 0.15 GiB more.
    ("RTX 3080", 10, 9.60),
    # An RTX 3060 had 11.63 to 11.76, an RTX 4070 Ti 11.70, another card of 12 GB 11.49.
    ("RTX 5070", 12, 11.49),
    ("RTX 3060 12 GB", 12, 11.60),
    ("RTX 3060 8 GB", 8, 7.60),
    ("RTX 3080 12 GB", 12, 11.60),
    ("RTX 3080 Ti", 12, 11.60),
    ("RTX 4070", 12, 11.60),
    ("RTX 4070 Super", 12, 11.60),
    ("RTX 4070 Ti", 12, 11.60),
    # An RTX 5060 Ti had 15.48 to 15.49, an RTX 5080 15.47, other cards of 16 GB 15.45.
    ("RTX 5060 Ti 16 GB", 16, 15.45),
    ("RTX 5070 Ti", 16, 15.45),
    ("RTX 5080", 16, 15.45),
    # An RTX 4060 Ti had 15.57, others 15.51; an RTX A4000 15.61.
    ("RTX 4060 Ti 16 GB", 16, 15.50),
    ("RTX 4070 Ti Super", 16, 15.50),
    ("RTX A4000", 16, 15.50),
    # Cards of 20 GB had 19.50 to 19.67; no message names an RTX A4500.
    ("RTX A4500", 20, 19.50),
    # As the RTX 3090, of the same generation and size.
    ("RTX A5000", 24, 23.50),
    # One of the two dies, each of which torch sees as a card.
    ("MI250", 64, 63.90),
)
"""Cards that people own. Where no message names the card, the figure is the least of any card of its size."""

OWNED = tuple(Card(name, sold, round(gib * _GIB), sold * _GIB) for name, sold, gib in _OWNED)
"""Cards that are known by name but never advised; of two with one name the usual one first."""


def card_named(text: str) -> Card | None:
    """Return the card whose name has all words of *text*, such as ``'3070ti'``, ``'a100-40'`` or ``'H200'``.

    The one with the fewest other words if several match, the first of those; None if none does.
    """
    cards = (*CARDS, *OWNED)
    found = fitting_name(text, [card.label for card in cards])
    return next((card for card in cards if card.label == found), None)


def fitting_name(text: str, names: Iterable[str]) -> str | None:
    """Return the first name that has all words of *text* and the fewest others; None if none has them."""
    asked = words(text)
    known = [
        (len(words(name) - asked), place, name) for place, name in enumerate(names) if asked <= words(name)
    ]
    return min(known)[2] if asked and known else None


def names_near(text: str, names: Iterable[str]) -> list[str]:
    """Return the *names* that resemble *text*, the nearest first."""
    compact = {"".join(sorted(words(name))): name for name in names}
    near = get_close_matches("".join(sorted(words(text))), compact, n=4, cutoff=0.5)
    return [compact[each] for each in near]


def words(text: str) -> set[str]:
    """Return the words of a card's name in lower case, without those that many names share."""
    apart = re.sub(r"(?<=\d)(?=ti|super|gb)|(?<=ti)(?=super|\d)|(?<=rtx)(?=\w)", " ", text.lower())
    return set(re.findall(r"[a-z0-9]+", apart)) - {"nvidia", "rtx", "geforce", "gb", "amd", "instinct"}
