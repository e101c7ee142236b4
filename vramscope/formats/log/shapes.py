"""Lines of one program differ in their numbers: what one of a shape has is looked up for the others."""

import re
from functools import lru_cache

_ZEROS = str.maketrans("123456789", "0" * 9)
_NUMBER = re.compile(r"(\d+(?:[.,]\d+)*)", re.ASCII)
_LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13)
"""Lengths of whole numbers that some pattern tells apart: of dates, times, devices, ranks and seconds."""
_LONGEST = 20
"""Digits from which on a number has a shape of its own, as no pattern takes them."""


class Shaped:
    """A text with its shape: the text with zeros for its digits, and shorter numbers of the same form."""

    __slots__ = ("_numbers", "_parts", "shape", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _NUMBER.split(text.translate(_ZEROS))
        parts[1::2] = map(_short, parts[1::2])
        self._parts, self._numbers = parts, list[str]()
        self.shape = "".join(parts)

    def number(self, place: int) -> str:
        """Return the number at that place, as the text has it."""
        self._numbers = self._numbers or _NUMBER.findall(self.text)
        return self._numbers[place]

    def at(self, position: int) -> int:
        """Return the position in the text of one in the shape that is not within a number."""
        there = here = 0
        for place, part in enumerate(self._parts):
            if there + len(part) > position:
                break
            there += len(part)
            here += len(self.number(place // 2)) if place % 2 else len(part)
        return here + position - there


@lru_cache(maxsize=1 << 14)
def _short(zeros: str) -> str:
    if "," in zeros or zeros.count(".") > 1:
        return zeros
    whole, dot, fraction = zeros.partition(".")
    if len(whole) < _LONGEST:
        whole = whole[: max(length for length in _LENGTHS if length <= len(whole))]
    return whole + dot + (fraction[:1] * 2 if len(fraction) <= _LONGEST else fraction)


def places(shape: str) -> dict[int, int]:
    """Return the place of each number in a shape by its position."""
    return {found.start(): place for place, found in enumerate(_NUMBER.finditer(shape))}
