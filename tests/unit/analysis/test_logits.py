"""Logits of a large vocabulary: what the loss in chunks would need, by computing it so."""

import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramscope
from vramscope.analysis.logits import logits
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


class Language(nn.Module):
    """An embedding, a layer and a head; its loss at once or in eight chunks."""

    def __init__(self, vocabulary, is_chunked):
        super().__init__()
        self.embed, self.body = nn.Embedding(vocabulary, 32), nn.Linear(32, 32)
        self.head, self.is_chunked = nn.Linear(32, vocabulary, bias=False), is_chunked

    def part(self, hidden, labels):
        return nn.functional.cross_entropy(self.head(hidden), labels, reduction="sum")

    def forward(self, tokens):
        hidden = torch.tanh(self.body(self.embed(tokens)))
        if not self.is_chunked:
            return self.part(hidden, tokens) / len(tokens)
        pieces = zip(hidden.chunk(8), tokens.chunk(8), strict=True)
        return sum(checkpoint(self.part, *piece, use_reentrant=False) for piece in pieces) / len(tokens)


class Halved(Language):
    """Has a loss in two chunks, each of which is still most of the peak."""

    def forward(self, tokens):
        hidden = torch.tanh(self.body(self.embed(tokens)))
        pieces = zip(hidden.chunk(2), tokens.chunk(2), strict=True)
        return sum(checkpoint(self.part, *piece, use_reentrant=False) for piece in pieces) / len(tokens)


class Scored(Language):
    """Keeps four tensors of the logits' size in its layers, as scores of attention may be."""

    def __init__(self, vocabulary, is_chunked):
        super().__init__(vocabulary, is_chunked)
        self.up = nn.ModuleList([nn.Linear(32, vocabulary, bias=False) for _ in range(4)])

    def forward(self, tokens):
        scored = self.embed(tokens)
        for up in self.up:
            scored = scored + torch.tanh(up(scored)) @ up.weight
        hidden = torch.tanh(self.body(scored))
        pieces = zip(hidden.chunk(8), tokens.chunk(8), strict=True)
        if self.is_chunked:
            return sum(checkpoint(self.part, *piece, use_reentrant=False) for piece in pieces) / len(tokens)
        return self.part(hidden, tokens) / len(tokens)


def recorded(path, vocabulary, is_chunked=False, kind=Language):
    model = kind(vocabulary, is_chunked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(1024) % vocabulary).backward()
            optimizer.step()
    (found,) = vramscope.load(path).recordings
    return found


def test_logits_of_a_large_vocabulary_are_most_of_the_peak_and_chunks_lower_it(tmp_path):
    """1,024 × 8,192 logits of four bytes: 32 MiB, and again as probabilities and as gradient."""
    whole = recorded(tmp_path / "whole", 8192)
    truth = recorded(tmp_path / "chunks", 8192, is_chunked=True).peak().allocated.n_bytes

    (said,) = logits(whole)
    (advice,) = [each for each in strategies(whole).advised if "chunks" in each.name]

    assert said.kind == "large_logits"
    assert said.n_bytes >= 64 * MIB
    assert said.n_bytes % (32 * MIB) == 0
    assert advice.low_bytes <= truth <= advice.high_bytes


def test_what_layers_make_of_the_size_of_logits_is_none_of_the_loss(tmp_path):
    """Layers keep 4 times 32 MiB; the loss has three times 32 MiB beside them, which chunks lower."""
    whole = recorded(tmp_path / "whole", 8192, kind=Scored)
    truth = recorded(tmp_path / "chunks", 8192, is_chunked=True, kind=Scored).peak().allocated.n_bytes

    assert all(each.n_bytes <= 4 * 32 * MIB for each in logits(whole))
    (advice,) = [each for each in strategies(whole).advised if "chunks" in each.name]
    assert advice.low_bytes <= truth <= advice.high_bytes


def test_of_a_loss_in_chunks_more_chunks_are_advised(tmp_path):
    """The truth is the run in eight chunks, which lowers the peak again."""
    halved = recorded(tmp_path / "halved", 8192, kind=Halved)
    (said,) = logits(halved)

    eight = recorded(tmp_path / "chunks", 8192, is_chunked=True)
    assert eight.peak().allocated.n_bytes < 0.7 * halved.peak().allocated.n_bytes
    assert said.advice == "head and loss are checkpointed already: in more chunks each has less"
    assert [each.name for each in strategies(halved).advised if "chunks" in each.name] == []


def test_chunks_of_a_loss_are_no_finding_any_more(tmp_path):
    assert logits(recorded(tmp_path / "chunks", 8192, is_chunked=True)) == []


def test_few_classes_are_no_finding(tmp_path):
    assert logits(recorded(tmp_path / "few", 64)) == []


def test_what_happens_to_have_half_the_size_of_logits_is_none(tmp_path):
    """Similarities of 256 and 8,192 rows take 8 MiB; the rows, joined from two parts, 4 MiB."""
    encoder = nn.Linear(32, 128)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            queries = encoder(torch.randn(256, 32))
            rows = torch.cat([encoder(torch.randn(256, 32)), torch.randn(7936, 128)])
            optimizer.zero_grad()
            nn.functional.cross_entropy(queries @ rows.T, torch.arange(256)).backward()
            optimizer.step()
    (found,) = logits(vramscope.load(tmp_path).recordings[0])
    n_blocks = int(re.search(r"are (\d+) blocks", found.claim)[1])

    assert found.claim.endswith("has 8.00 MiB")
    assert "converted" not in found.claim
    # A block may be larger than its tensor by what is not worth splitting.
    assert 0 <= found.n_bytes - n_blocks * 8 * MIB < n_blocks * MIB


def test_logits_of_16_bits_that_become_32_count_too(tmp_path):
    head = nn.Linear(32, 8192, bias=False).bfloat16()
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        scores = head(torch.randn(256, 32, dtype=torch.bfloat16))
        nn.functional.cross_entropy(scores.float(), torch.arange(256)).backward()
    (found,) = logits(vramscope.load(tmp_path).recordings[0])

    assert "computed in 16 bits and converted" in found.claim


def test_results_that_an_evaluation_keeps_are_no_matter_of_the_loss(tmp_path):
    net = nn.Linear(32, 8192)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(torch.randn(64, 32)), torch.arange(64)).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            kept = [net(torch.randn(64, 32)) for _ in range(40)]
    (recording,) = vramscope.load(tmp_path).recordings

    assert len(kept) == 40
    assert logits(recording) == []


@pytest.mark.parametrize("has_teacher", [False, True])
def test_what_an_evaluation_converts_is_none_of_a_loss_with_a_backward(tmp_path, has_teacher):
    """Its 32 MiB are there twice, the batch before's as well; a teacher's forward is no evaluation."""
    net, teacher = nn.Linear(32, 8192).bfloat16(), nn.Linear(32, 8192)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    n_trained, n_evaluated = (1024, 32) if has_teacher else (32, 1024)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            scores = net(torch.randn(n_trained, 32).bfloat16())
            with torch.no_grad():
                teacher(torch.randn(8, 32))
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores.float(), torch.arange(n_trained)).backward()
            optimizer.step()
            del scores
        with torch.no_grad():
            for _ in range(3):
                scores = net(torch.randn(n_evaluated, 32).bfloat16()).float()
                nn.functional.cross_entropy(scores, torch.arange(n_evaluated)).item()
    (recording,) = vramscope.load(tmp_path).recordings

    assert len(logits(recording)) == has_teacher
