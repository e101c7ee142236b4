"""Gradients that have all rows of an embedding, of which a step looks up few."""

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.gradient_storage import gradient_storage

pytestmark = pytest.mark.usefixtures("own_tensors_only")

WORDS, WIDTH = 20_000, 64


class Net(nn.Module):
    """Words of a sentence, a layer, and a score for each class, or for each word."""

    def __init__(self, *, is_sparse: bool = False, is_tied: bool = False, is_shared: bool = False):
        super().__init__()
        self.is_shared = is_shared
        self.words = nn.Embedding(WORDS, WIDTH, sparse=is_sparse)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS if is_tied else 10, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        hidden = torch.tanh(self.body(self.words(x))).mean(1)
        return nn.functional.linear(hidden, self.words.weight) if self.is_shared else self.head(hidden)


def said_of(path, n_looked_up, **options):
    net = Net(**options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(4):
            loss = net(torch.randint(WORDS, (n_looked_up // 20, 20))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = gradient_storage(vramscope.load(path).recordings[0])
    return [each for each in found if each.kind == "embedding_gradient"]


def test_a_gradient_of_all_rows_of_which_few_are_looked_up_is_named_with_the_line_that_looks_up(tmp_path):
    """400 of 20,000 rows are at most 2 %; the gradient has all of them, of four bytes a number."""
    (said,) = said_of(tmp_path, 400)

    assert said.n_bytes == WORDS * WIDTH * 4
    assert "the gradient of words.weight" in said.claim
    assert "no step looks up more than 2 %" in said.claim
    assert (said.file, said.function) == (__file__, "forward")


@pytest.mark.parametrize(
    ("n_looked_up", "options"),
    [
        pytest.param(400, {"is_sparse": True}, id="a gradient of the rows alone"),
        pytest.param(400, {"is_tied": True}, id="weights that the head has as well"),
        pytest.param(400, {"is_shared": True}, id="weights that a product reads as well"),
        pytest.param(12_000, {}, id="most rows"),
    ],
)
def test_other_gradients_of_embeddings_are_as_they_have_to_be(tmp_path, n_looked_up, options):
    assert said_of(tmp_path, n_looked_up, **options) == []


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_embedding_that_no_optimizer_trains_needs_no_gradient_at_all(tmp_path, kind):
    """A sparse one would be as useless: SGD's zero_grad() leaves it, AdamW has state for the others alone."""
    net = Net()
    trained = kind([*net.body.parameters(), *net.head.parameters()], lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(5):
            net(torch.randint(WORDS, (20, 20))).square().mean().backward()
            trained.step()
            (trained if kind is torch.optim.SGD else net).zero_grad()

    found = gradient_storage(vramscope.load(tmp_path).recordings[0])

    assert "embedding_gradient" not in [each.kind for each in found]


class Bags(nn.Module):
    """A sum or mean of the rows of each bag of words, and scores."""

    def __init__(self, **options):
        super().__init__()
        self.words = nn.EmbeddingBag(10 * WORDS, WIDTH, **options)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, *lookups):
        return self.head(self.words(*lookups))


def said_of_bags(path, *, is_flat, **options):
    """What is said of four steps on CUDA, of 20 and 12 bags of 20 words; *is_flat* gives where bags begin."""

    def program():
        net = Bags(**options).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            words = torch.zeros(20 if step % 2 else 12, 20, dtype=torch.int64, device="cuda")
            begins = torch.arange(0, words.numel(), 20, device="cuda")
            loss = net(*((words.flatten(), begins) if is_flat else (words,))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = vramscope.predict(program, card="H100", steps=4, directory=path)
    (recording,) = vramscope.load(found.run).recordings
    return [each for each in gradient_storage(recording) if each.kind == "embedding_gradient"]


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("options", [{"mode": "sum"}, {"mode": "mean", "max_norm": 1.0}])
def test_a_bag_of_few_rows_is_named_with_their_share(tmp_path, is_flat, options):
    """At most 400 of 200,000 rows, 0.2 %, though a call returns 20."""
    (said,) = said_of_bags(tmp_path, is_flat=is_flat, **options)

    assert said.n_bytes == 10 * WORDS * WIDTH * 4
    assert "no step looks up more than 0.2 %" in said.claim
    assert "torch.nn.EmbeddingBag" in said.advice


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("options", [{"mode": "max"}, {"mode": "sum", "sparse": True}])
def test_no_bag_is_named_whose_gradient_cannot_be_sparse_or_is(tmp_path, is_flat, options):
    assert said_of_bags(tmp_path, is_flat=is_flat, **options) == []
