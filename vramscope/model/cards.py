"""Sizes of GPU cards in bytes, as torch reports them.

They are read from the messages of torch that people publish when memory runs out: "GPU 0 has a total capacity
of 15.47 GiB". A newer driver keeps more for itself, and on Windows a card has all that it is sold with.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from vramscope.package_data import rows

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


def _cards(kind: str, most: int) -> tuple[Card, ...]:
    found = rows(__file__, "cards.tsv", kind)
    return tuple(Card(name, int(gb), round(float(gib) * _GIB), int(gb) * most) for name, gb, gib in found)


CARDS = _cards("advised", 0)
"""Known cards, the smallest first."""
OWNED = _cards("owned", _GIB)
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
