"""Activations of a frozen part of a model are told where nothing that trains runs before it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import vramscope
from vramscope import cli
from vramscope.analysis.kept_activations import kept_activations
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")


def tower():
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))


class Model(nn.Module):
    """A frozen part between two that may train."""

    def __init__(self):
        super().__init__()
        self.prompt, self.frozen, self.head = (
            nn.Linear(64, 64),
            tower().requires_grad_(False),
            nn.Linear(64, 2),
        )

    def forward(self, x):
        return self.head(self.frozen(self.prompt(x)))


def said(path, *, trains_before=False, is_input_asked=False):
    model = Model()
    model.prompt.requires_grad_(trains_before)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(8192, 64, requires_grad=is_input_asked)
            model(x).square().mean().backward()
            optimizer.step()
    (recording,) = vramscope.load(path).recordings
    return kept_activations(recording)


def test_a_frozen_part_that_keeps_activations_is_told(tmp_path):
    """Four linear layers and four functions: autograd keeps the result of each function, 2 MiB."""
    (found,) = said(tmp_path / "run", is_input_asked=True)

    assert (found.kind, found.module) == ("frozen_activations", "frozen")
    assert found.n_bytes >= 4 * 8192 * 64 * 4


@pytest.mark.parametrize(
    "how", [{"trains_before": True}, {}], ids=["a gradient passes through", "nothing kept"]
)
def test_what_a_gradient_passes_through_is_needed(tmp_path, how):
    assert said(tmp_path / "run", **how) == []


class Switched(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.grad_checkpointing = True

    def forward(self, x):
        if self.grad_checkpointing and self.training:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)


@pytest.mark.parametrize(("is_training", "is_switched"), [(False, True), (True, True), (False, False)])
def test_checkpointing_that_never_recomputes_is_named(tmp_path, capsys, is_training, is_switched):
    net = nn.Sequential(*(Switched() for _ in range(3))).train(is_training)
    for block in net:
        block.grad_checkpointing = is_switched
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            net(torch.randn(512, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings
    found = [each for each in kept_activations(recording) if each.kind == "checkpoints_idle"]

    if is_training or not is_switched:
        assert found == []
        return
    (finding,) = found
    assert "3 modules (0 … 2), which run in eval mode" in finding.claim
    assert "model.train()" in finding.advice
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.replace("\n", " ").count("which run in eval mode") == 1
    # Each block keeps two tensors of 512 x 1,024 and its result; the last result is gone when backward peaks.
    assert finding.n_bytes >= 3 * 2 * 512 * 1024 * 4


class Conditional(nn.Module):
    """Checkpoints by its own condition, as models of libraries do."""

    def __init__(self, *, use_cache):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        self.gradient_checkpointing, self.use_cache = True, use_cache

    def forward(self, x):
        if self.gradient_checkpointing and not self.use_cache:
            return checkpoint(self.body, x, use_reentrant=True)
        return self.body(x)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize(
    ("use_cache", "input_needs_gradient", "is_idle"),
    [(True, True, True), (False, False, True), (False, True, False)],
    ids=["use_cache", "no input with a gradient", "recomputes"],
)
def test_checkpointing_in_train_mode_that_never_recomputes(
    tmp_path, use_cache, input_needs_gradient, is_idle
):
    net = nn.Sequential(Conditional(use_cache=use_cache), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(2):
            batch = torch.randn(512, 256, requires_grad=input_needs_gradient)
            net(batch).square().mean().backward()
            optimizer.step()
    (recording,) = vramscope.load(tmp_path).recordings
    found = [each for each in kept_activations(recording) if each.kind == "checkpoints_idle"]

    # torch's own answer: without an input that needs one, parameters within get no gradient.
    assert (net[0].body[0].weight.grad is None) == (not use_cache and not input_needs_gradient)
    assert ["use_cache" in each.advice and "use_reentrant=False" in each.advice for each in found] == (
        [True] if is_idle else []
    )


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_checkpoint_sequential_never_checkpoints_its_last_segment(tmp_path, segments):
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)) for _ in range(4))
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            batch = torch.randn(512, 256, requires_grad=True)
            checkpoint_sequential(net, segments, batch, use_reentrant=False).square().mean().backward()
            optimizer.step()
    (recording,) = vramscope.load(tmp_path).recordings
    found = [each for each in kept_activations(recording) if each.kind == "checkpoints_idle"]

    if segments > 1:
        assert found == []
        return
    (finding,) = found
    # Tanh keeps its result in each of four blocks, and each but the first keeps its input.
    assert finding.n_bytes >= 4 * 512 * 1024 * 4 + 3 * 512 * 256 * 4
    assert "more segments" in finding.advice


@pytest.mark.parametrize("then", ["trains again", "stays in eval mode"])
def test_checkpointing_that_ends_with_an_evaluation_is_told(tmp_path, then):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(tower() for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
            return x

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for step in range(8):
            optimizer.zero_grad()
            net(torch.randn(8192, 64)).square().mean().backward()
            optimizer.step()
            if step == 3:
                net.train(then == "trains again")
    (recording,) = vramscope.load(tmp_path).recordings

    found = [each for each in kept_activations(recording) if each.kind == "checkpoints_idle"]

    assert len(found) == (then != "trains again")
    assert all(each.claim.startswith("steps 0 to 3 recompute") for each in found)


def played(path, update):
    """A maker and a judge with an optimizer for each, and what *update* does in each step."""
    maker = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(128, 128), nn.Tanh())))
    judge = nn.Sequential(nn.Linear(128, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (maker, judge)]
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(4):
            update(maker, judge, *optimizers)
    (recording,) = vramscope.load(path).recordings
    return [each for each in kept_activations(recording) if each.kind == "gradients_unused"]


def trains(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def attached(maker, judge, of_maker, of_judge):
    trains(of_judge, judge(maker(torch.randn(2048, 128))).square().mean())
    trains(of_maker, judge(maker(torch.randn(256, 128))).square().mean())


def detached(maker, judge, of_maker, of_judge):
    trains(of_judge, judge(maker(torch.randn(2048, 128)).detach()).square().mean())
    trains(of_maker, judge(maker(torch.randn(256, 128))).square().mean())


def trained_together(maker, judge, of_maker, of_judge):
    of_maker.zero_grad()
    trains(of_judge, judge(maker(torch.randn(2048, 128))).square().mean())
    of_maker.step()


def all_results_detached(maker, judge, of_maker, of_judge):
    """The judge's first layer keeps results of the maker, each of which is detached."""
    value, results = torch.randn(2048, 128), []
    for part in maker:
        value = part(value)
        results.append(value)
    trains(of_judge, sum(judge(each.detach()).square().mean() for each in results[1::2]))
    trains(of_maker, judge(maker(torch.randn(256, 128))).square().mean())


def judged_only(maker, judge, of_maker, of_judge):
    """The judge's gradients go unused, and the maker's pass through it."""
    trains(of_maker, judge(maker(torch.randn(2048, 128))).square().mean())
    trains(of_judge, judge(torch.randn(256, 128)).square().mean())


def with_a_trained_input(maker, judge, of_maker, of_judge):
    """Gradients of the maker's parameters go unused, and that of its input does not."""
    start = torch.randn(2048, 128, requires_grad=True)
    trains(of_judge, judge(maker(start)).square().mean())
    start.data -= 0.1 * start.grad
    trains(of_maker, judge(maker(torch.randn(256, 128))).square().mean())


@pytest.mark.parametrize(
    ("update", "lines"),
    [
        (attached, [attached.__code__.co_firstlineno + 1]),
        (detached, []),
        (all_results_detached, []),
        (trained_together, []),
        (judged_only, []),
        (with_a_trained_input, []),
    ],
)
def test_a_maker_that_is_not_detached_for_the_judge_is_named(tmp_path, update, lines):
    """Its first three results need not be there in the judge's backward; the judge itself needs the last."""
    found = played(tmp_path / "run", update)

    assert [each.line for each in found] == lines
    assert [each.n_bytes for each in found] == [3 * 2048 * 128 * 4] * len(lines)


@pytest.mark.parametrize(
    ("how", "is_told"), [(torch.enable_grad, True), (torch.no_grad, False)], ids=["with gradients", "without"]
)
def test_forwards_with_gradients_that_no_backward_follows_are_named(tmp_path, how, is_told):
    """Eight layers of 256 KiB each stay of every forward until its result is replaced."""
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        for _ in range(6):
            with how():
                result = net(torch.randn(1024, 64))
        del result
    (recording,) = vramscope.load(tmp_path / "run").recordings
    found = [each for each in kept_activations(recording) if each.kind == "no_backward"]

    assert len(found) == is_told
    assert all("none of the 6" in each.claim and each.n_bytes >= 4 * 256 << 10 for each in found)


@pytest.mark.parametrize("does", ["train", "generate with gradients", "generate"])
def test_what_changes_a_backward_is_advised_only_where_one_comes(tmp_path, does):
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Tanh()) for _ in range(6)))
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        for _ in range(8):
            with torch.set_grad_enabled(does != "generate"):
                result = net(torch.randn(1024, 64))
            if does == "train":
                result.square().mean().backward()
        del result
    found = strategies(vramscope.load(tmp_path / "run").recordings[0])
    names = " ".join([*(each.name for each in (*found.advised, *found.undecided)), *found.without_effect])

    assert ("checkpointing" in names) == (does == "train")
    assert ("micro-batches" in names) == (does == "train")


def test_a_result_that_is_kept_is_no_graph(tmp_path):
    """The weights are frozen, so a forward leaves its result alone."""
    net = nn.Linear(64, 64).requires_grad_(False)
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        results = [net(torch.randn(1024, 64)) for _ in range(6)]
    (recording,) = vramscope.load(tmp_path / "run").recordings

    assert len(results) == 6
    assert "no_backward" not in {each.kind for each in kept_activations(recording)}
