"""Cards by their names."""

import pytest

from vramscope.model.cards import CARDS, card_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4090", "RTX 3090/4090"),
        ("RTX-4090", "RTX 3090/4090"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("a100-40gb", "A100 40 GB"),
        ("A100 80GB", "A100/H100 80 GB"),
        ("h100", "A100/H100 80 GB"),
        ("l4", "L4/A10G"),
        ("t4", "T4"),
        ("24GiB", None),
        ("GTX 480", None),
        ("", None),
        ("gb", None),
    ],
)
def test_a_card_is_found_by_the_words_of_its_name(text, name):
    found = card_named(text)

    assert (found and found.name) == name


def test_no_card_has_all_that_it_is_sold_with():
    assert [card.total_bytes for card in CARDS] == sorted(card.total_bytes for card in CARDS)
    assert all(card.total_bytes < card.sold_as_gb << 30 for card in CARDS)
    assert all(card.total_bytes > 0.9 * (card.sold_as_gb << 30) for card in CARDS)
