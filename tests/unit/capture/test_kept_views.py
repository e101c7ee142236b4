"""Storages of which only small views are held, and those of which the whole is held as well."""

import sys

import pytest
import torch

from vramscope.capture.holders import search

N_BYTES = 4 * 100 * 7


def whole(**how):
    return torch.ones(100, 7, **how)


def view_of_the_whole():
    """The words on views of the storage that has N_BYTES, as a search from the caller's names has them."""
    ways = search(20.0, sys._getframe(1)).ways
    (words,) = {way.view for way in ways if way.storage.nbytes() == N_BYTES}
    return words


def test_the_shape_and_bytes_of_the_only_view_are_written():
    row = whole()[3]

    assert view_of_the_whole() == (("view", "[7]", "", 4 * 7),)
    del row


def test_a_view_with_a_graph_is_written_as_such():
    column = (torch.ones(7, requires_grad=True) + whole())[:, 2]

    assert view_of_the_whole() == (("view", "[100]", "graph", 4 * 100),)
    del column


def test_several_views_are_written_by_their_bytes_together():
    rows = [whole()[:20]]
    rows.append(rows[0][:10].detach())

    assert view_of_the_whole() == (("view", "", "", 4 * 7 * 30),)


@pytest.mark.parametrize(
    "held",
    [
        lambda x: (x, x[3]),
        lambda x: x.chunk(4),
        lambda x: (x[3], x.detach().view(-1)),
        lambda x: (x[3], x.untyped_storage()),
        lambda x: (x[3], (x * torch.ones(7, requires_grad=True)).sum()),
        lambda x: (x[3], map(torch.neg, [x])),
    ],
    ids=["itself", "parts", "alias", "storage", "graph", "iterator"],
)
def test_what_has_the_whole_beside_a_view_leaves_nothing_to_say(held):
    kept = held(whole())

    assert view_of_the_whole() == ()
    del kept


def test_a_whole_that_only_a_statement_holds_leaves_nothing_to_say():
    for x in [whole()]:
        row = x[3]
        del x

        assert view_of_the_whole() == ()
    del row


def test_a_search_that_was_cut_off_says_nothing_of_views():
    row = whole()[3]

    found = search(0.0, sys._getframe())

    assert not found.is_complete
    assert {way.view for way in found.ways} <= {()}
    del row
