"""Statements that make tensors much larger than their operands: what the peak is without them."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.wide_results import _kind, wide_results
from vramscope.model.stacks import SourceFile
from vramscope.store import manifest as manifests
from vramscope.store import sources

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def by_difference(x, y):
    difference = x.unsqueeze(2) - y.unsqueeze(1)
    return (difference**2).sum(dim=-1)


def by_expanded_names(x, y):
    x = x[:, :, None, :].expand(-1, -1, 512, -1)
    y = y[:, None].expand(-1, 512, -1, -1)
    return torch.pow(
        x - y,
        2,
    ).sum(3)


def by_product(x, y):
    return torch.cdist(x, y) ** 2


def of_each_row(x, y):
    # The same dimension is inserted on both sides: row i of one with row i of the other.
    near = x.unsqueeze(2) - y.unsqueeze(2)
    return near.sum(2) @ torch.ones(8, 512)


def recorded(path, distances):
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            distance = distances(layer(torch.randn(2, 512, 8)), torch.randn(2, 512, 8))
            optimizer.zero_grad()
            distance.min(dim=2).values.mean().backward()
            optimizer.step()
    return with_source(vramscope.load(path).recordings[0])


def with_source(recording):
    """The recording with this file's lines, which a process writes at its end."""
    lines = dict(enumerate(Path(__file__).read_text().splitlines(), 1))
    return replace(recording, sources={__file__: SourceFile(lines)})


@pytest.mark.parametrize("distances", [by_difference, by_expanded_names])
def test_differences_of_all_pairs_are_most_of_the_peak_and_cdist_makes_none(tmp_path, distances):
    """2 × 512 × 512 × 8 numbers of four bytes: 16 MiB; the distances alone are 2 MiB."""
    wide = recorded(tmp_path / "wide", distances)
    other = recorded(tmp_path / "other", by_product)

    (said,) = wide_results(wide)

    assert (said.kind, said.function) == ("wide_results", distances.__name__)
    assert "differences of all pairs" in said.claim
    assert "16.0 MiB each" in said.claim
    assert "torch.cdist" in said.advice
    assert said.n_bytes >= 32 * MIB
    assert other.peak().allocated.n_bytes <= wide.peak().allocated.n_bytes - said.n_bytes / 2
    assert wide_results(other) == []


def test_differences_of_each_row_with_its_own_are_no_pairs(tmp_path):
    assert wide_results(recorded(tmp_path, of_each_row)) == []


def scores_of(path, loss):
    layer = nn.Linear(4, 256)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            loss(layer(torch.randn(4096, 4)), torch.arange(4096) % 256).backward()
            optimizer.step()
    return with_source(vramscope.load(path).recordings[0])


def with_vectors(scores, labels):
    wanted = nn.functional.one_hot(labels, 256).float()
    return -(scores.log_softmax(1) * wanted).sum(1).mean()


def with_numbers(scores, labels):
    return -scores.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


def test_labels_as_vectors_are_named_and_numbers_take_their_place(tmp_path):
    """4,096 × 256 numbers of eight bytes are 8 MiB, and 4 MiB as float."""
    wide, other = scores_of(tmp_path / "wide", with_vectors), scores_of(tmp_path / "other", with_numbers)

    (said,) = wide_results(wide)

    text = "wanted = nn.functional.one_hot(labels, 256).float()"
    assert said.claim.endswith(f"one-hot vectors that `{text}` makes, 8.00 MiB at most")
    assert other.peak().allocated.n_bytes <= 0.8 * wide.peak().allocated.n_bytes
    assert wide_results(other) == []


def masked(is_copied, queries):
    mask = torch.zeros(1, 1, 512, 512)
    if is_copied:
        mask = mask.repeat(4, 8, 1, 1)
    return nn.functional.scaled_dot_product_attention(queries, queries, queries, attn_mask=mask)


@pytest.mark.parametrize(("is_copied", "n_said"), [(True, 1), (False, 0)])
def test_a_mask_that_is_repeated_is_named(tmp_path, is_copied, n_said):
    layer = nn.Linear(8, 8)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            masked(is_copied, layer(torch.randn(4, 8, 512, 8))).sum().backward()
    said = wide_results(with_source(vramscope.load(tmp_path).recordings[0]))

    assert ["`mask = mask.repeat(4, 8, 1, 1)`" in each.claim for each in said] == [True] * n_said


def repeated_heads(keys):
    return keys[:, :, None].expand(2, 2, 16, 256, 32).reshape(2, 32, 256, 32)


def read_in_place(keys):
    return keys[:, :, None].expand(2, 2, 16, 256, 32)


@pytest.mark.parametrize(("heads", "n_said"), [(repeated_heads, 1), (read_in_place, 0)])
def test_heads_that_share_keys_are_copied_by_reshape_alone(tmp_path, heads, n_said):
    """Keys of 2 heads for 32: 2 × 32 × 256 × 32 numbers are 2 MiB."""
    layer = nn.Linear(32, 32)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            heads(layer(torch.randn(2, 2, 256, 32))).cos().sum().backward()
    said = wide_results(with_source(vramscope.load(tmp_path).recordings[0]))

    assert [each.function for each in said] == ["repeated_heads"] * n_said


def shared(rows, keys):
    return torch.matmul(rows[:, :, None], keys)


def shared_by_einsum(rows, keys):
    return torch.einsum("bhk,hkm->bhm", rows, keys[0])


def one_matrix(rows, keys):
    return rows.flatten(1) @ keys.view(2048, 64).detach()


def scored(path, product):
    layer, keys = nn.Linear(256, 256), nn.Parameter(torch.randn(1, 8, 256, 64))
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            product(layer(torch.randn(32, 8, 256)), keys).sum().backward()
    return with_source(vramscope.load(path).recordings[0])


def test_an_operand_that_a_product_copies_for_each_row_is_named(tmp_path):
    """8 × 256 × 64 numbers, once for each of 32 rows: 16 MiB; the product itself has 64 KiB."""
    copied, other = scored(tmp_path / "copied", shared), scored(tmp_path / "other", shared_by_einsum)

    (said,) = wide_results(copied)

    assert said.claim.endswith("makes, 16.0 MiB each, with other tensors of that size here and in backward")
    assert other.peak().allocated.n_bytes <= copied.peak().allocated.n_bytes - 16 * MIB
    assert wide_results(other) == []
    assert wide_results(scored(tmp_path / "plain", one_matrix)) == []


def test_a_sum_of_a_copy_is_not_called_a_copy():
    """What the line makes is the sum, and the copy may be gone."""
    assert _kind(ast.parse("y = x.expand(4, 8) + z.contiguous()").body[0], {}) == ""
    assert _kind(ast.parse("y = x.repeat(4, 1) * z").body[0], {}) == ""
    assert _kind(ast.parse("y = x.repeat(4, 1).float()").body[0], {}) == "copies"


def test_a_copy_with_no_other_of_its_size_is_named_alone(tmp_path):
    """No result and no gradient has 4096 rows, so backward has no part in it."""
    layer, row = nn.Linear(256, 8), torch.randn(1, 256)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        table = row.repeat(4096, 1)
        for _ in range(3):
            layer(table[:8]).sum().backward()

    (said,) = wide_results(with_source(vramscope.load(tmp_path).recordings[0]))

    assert said.claim.endswith("makes, 4.00 MiB each")


def test_a_copy_of_a_tensor_as_it_is_makes_nothing_wider():
    assert _kind(ast.parse("y = x.repeat(1, 1)").body[0], {}) == ""
    assert _kind(ast.parse("y = x.repeat(1, n)").body[0], {}) == "copies"


def test_a_hostile_source_is_no_statement(tmp_path):
    """Text of a recording is parsed: what cannot be, or nests without end, says nothing."""
    recording = recorded(tmp_path, by_difference)
    (line,) = {each.line for each in wide_results(recording)}
    for text in ("(" * 400, "x = " + "-" * 396 + "1", "\x00", "é(", "", "x = 1; y = 2", "é" * 400):
        assert wide_results(replace(recording, sources={__file__: SourceFile({line: text})})) == []


def test_lines_are_read_with_the_recording_and_count_unless_their_file_changed(tmp_path):
    """A file that is newer than the start of the run may have other code at a line."""
    lines = recorded(tmp_path / "run", by_difference).sources[__file__].lines
    rank = tmp_path / "run" / "rank0"
    said = []
    for modified_ns in (0, 1 << 62):
        kept = {__file__: SourceFile(lines, len(lines), modified_ns)}
        sources.write(rank / sources.SOURCES_FILE, manifests.read(rank / "manifest.json").id, kept)
        (read,) = vramscope.load(tmp_path / "run").recordings
        assert read.sources == kept
        said.append(len(wide_results(read)))

    assert said == [1, 0]
