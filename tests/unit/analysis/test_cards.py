"""Cards by their names."""

import pytest

from vramscope.model.cards import CARDS, OWNED, card_named, names_near


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
        ("3070ti", "RTX 3070 Ti"),
        ("RTX 3070 Ti", "RTX 3070 Ti"),
        ("rtx3070", "RTX 3070"),
        ("4070 super", "RTX 4070 Super"),
        ("4070tisuper", "RTX 4070 Ti Super"),
        ("3060", "RTX 3060 12 GB"),
        ("3060-8gb", "RTX 3060 8 GB"),
        ("4060ti16", "RTX 4060 Ti 16 GB"),
        ("NVIDIA GeForce RTX 5080", "RTX 5080"),
        ("A5000", "RTX A5000"),
        ("l40s", "L40S"),
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


def test_a_card_that_people_own_has_less_than_it_is_sold_with_on_one_system_and_all_of_it_on_another():
    assert all(0.9 * card.most_bytes < card.total_bytes < card.most_bytes for card in OWNED)
    assert all(card.most_bytes == card.sold_as_gb << 30 for card in OWNED)


def test_names_near_a_wrong_one_are_those_of_its_kind():
    names = [card.label for card in (*CARDS, *OWNED)]

    assert "RTX 3070 8 GB" in names_near("3075", names)
    assert names_near("zzzz", names) == []
