"""Forwards that wait for a backward are those of the thread that runs it."""

import numpy as np
import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis.accumulation import accumulation
from vramscope.model.marks import Phase, Phases, Steps
from vramscope.model.recording import Recording
from vramscope.model.trace import Action, Trace

N_STEPS, N_FORWARDS = 3, 3
_EVENTS = 2 * N_FORWARDS
"""Number of events of a step: each forward allocates one block, and the last backward frees all."""


def trained(threads):
    """Three forwards, one in each of the threads, then a backward in each, for some steps."""
    blocks = np.arange(N_FORWARDS)
    start = np.concatenate([blocks, np.full(N_FORWARDS, N_FORWARDS)])
    end = np.append(start[:-1] + np.repeat([1, 0], N_FORWARDS)[:-1], _EVENTS)
    first = _EVENTS * np.repeat(np.arange(N_STEPS), _EVENTS)
    return Recording(
        trace=Trace.of(
            action=[*[Action.ALLOC] * N_FORWARDS, *[Action.FREE_REQUESTED] * N_FORWARDS] * N_STEPS,
            address=[*blocks, *blocks] * N_STEPS,
            size=[1 << 20] * _EVENTS * N_STEPS,
            block_size=[1 << 20] * _EVENTS * N_STEPS,
        ),
        steps=Steps.of(
            index=np.arange(N_STEPS),
            start_event=_EVENTS * np.arange(N_STEPS),
            end_event=_EVENTS * np.arange(1, N_STEPS + 1),
        ),
        phases=Phases.of(
            phase=[*[Phase.FORWARD] * N_FORWARDS, *[Phase.BACKWARD] * N_FORWARDS] * N_STEPS,
            step=np.repeat(np.arange(N_STEPS), _EVENTS),
            start_event=np.tile(start, N_STEPS) + first,
            end_event=np.tile(end, N_STEPS) + first,
            thread=[*threads, *threads] * N_STEPS,
        ),
    )


@pytest.mark.parametrize(("threads", "n_forwards"), [((1, 1, 1), [3]), ((1, 2, 3), [])])
def test_forwards_of_three_threads_wait_for_three_backwards(threads, n_forwards):
    assert [each.evidence["forwards"] for each in accumulation(trained(threads))] == n_forwards


def validated(path, *, has_gradients):
    """Two epochs of training; after each, the losses of eight batches are summed as they come."""
    net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(2):
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(256, 64)).square().mean().backward()
                optimizer.step()
            with torch.set_grad_enabled(has_gradients):
                total = sum(net(torch.randn(256, 64)).square().mean() for _ in range(8))
            float(total.detach())
            del total
    (recording,) = vramscope.load(path).recordings
    return recording


@pytest.mark.usefixtures("own_tensors_only")
def test_a_validation_with_gradients_keeps_what_no_backward_uses(tmp_path):
    """Each forward but the running one keeps two results of tanh, 256 × 512 numbers of four bytes each."""
    (found,) = accumulation(validated(tmp_path / "with", has_gradients=True))

    assert (found.kind, found.evidence["forwards"]) == ("graphs_without_backward", 7)
    assert found.n_bytes == pytest.approx(7 * 2 * 256 * 512 * 4, rel=0.15)
    assert accumulation(validated(tmp_path / "without", has_gradients=False)) == []


def squares(result):
    return result.square().mean()


def likelihoods(result):
    """Backward needs the logarithms of the shares, and not the result."""
    return nn.functional.cross_entropy(result, torch.zeros(len(result), dtype=torch.long))


def epochs(path, evaluate, sizes=(64, 64), loss_of=squares):
    """Two epochs: batches of training, of which large ones are skipped, then what *evaluate* does."""
    net = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 256))
    teacher = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(2):
            for size in sizes:
                loss = loss_of(net(torch.randn(size, 256)))
                if size < 1024:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            evaluate(net, teacher)
    (recording,) = vramscope.load(path).recordings
    return recording


def whole_batches(net, _):
    for _ in range(3):
        batch = torch.randn(1024, 256)
        result = net(batch)
        float(torch.dist(result.detach(), batch))


def nothing(*_):
    pass


def whole_batches_without_gradients(net, teacher):
    with torch.no_grad():
        whole_batches(net, teacher)


def hidden_results_of_a_frozen_teacher(_, teacher):
    for _ in range(3):
        batch = torch.randn(1024, 256)
        hidden = [batch := part(batch) for part in teacher]
        float(hidden[-1].sum())


@pytest.mark.usefixtures("own_tensors_only")
@pytest.mark.parametrize("loss_of", [squares, likelihoods])
def test_a_graph_that_no_backward_of_its_line_uses_is_named_and_not_divided(tmp_path, loss_of):
    """The graph before the running forward: two results of tanh and the result, in rows of 1024."""
    recording = epochs(tmp_path / "run", whole_batches, loss_of=loss_of)
    (found,) = accumulation(recording)

    assert (found.kind, found.evidence["forwards"]) == ("graphs_without_backward", 1)
    assert "what a forward keeps for a backward" in found.claim
    assert found.n_bytes == 1024 * (512 + 512 + 256) * 4
    assert found.line == whole_batches.__code__.co_firstlineno + 3
    assert [each.name for each in recording.strategies().advised if "micro-batches" in each.name] == []


@pytest.mark.usefixtures("own_tensors_only")
@pytest.mark.parametrize(
    ("evaluate", "sizes"),
    [
        (nothing, (64, 1024, 1024, 64)),
        (whole_batches_without_gradients, (64, 64)),
        (hidden_results_of_a_frozen_teacher, (64, 64)),
    ],
)
def test_what_trains_elsewhere_or_keeps_no_graph_is_no_unused_graph(tmp_path, evaluate, sizes):
    for loss_of in (squares, likelihoods):
        assert accumulation(epochs(tmp_path / loss_of.__name__, evaluate, sizes, loss_of)) == []


def adapted(path, *, is_summed, n_tasks=6):
    """Meta-learning: each task adapts the weights in two inner steps whose gradients have a graph."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss_of_task():
        weights = dict(net.named_parameters())
        for _ in range(2):
            inner = torch.func.functional_call(net, weights, torch.randn(128, 64)).square().mean()
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            pairs = zip(weights.items(), gradients, strict=True)
            weights = {name: weight - 0.1 * gradient for (name, weight), gradient in pairs}
        return torch.func.functional_call(net, weights, torch.randn(128, 64)).square().mean()

    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            optimizer.zero_grad()
            if is_summed:
                sum(loss_of_task() for _ in range(n_tasks)).backward()
            else:
                for _ in range(n_tasks):
                    loss_of_task().backward()
            optimizer.step()
    (recording,) = vramscope.load(path).recordings
    return recording


@pytest.mark.usefixtures("own_tensors_only")
def test_tasks_of_meta_learning_that_wait_for_one_backward_are_rounds(tmp_path):
    """What the edit leaves of the peak is measured: the same tasks with a backward for each."""
    summed, each = (adapted(tmp_path / str(way), is_summed=way) for way in (True, False))
    (found,) = accumulation(summed)
    saved = summed.timeline().allocated_bytes.max() - each.timeline().allocated_bytes.max()

    assert "6 rounds of the same 3 forwards" in found.claim
    assert found.n_bytes == pytest.approx(int(saved), rel=0.1)
    assert accumulation(each) == []
    assert accumulation(adapted(tmp_path / "two", is_summed=True, n_tasks=2)) == []


@pytest.mark.usefixtures("own_tensors_only")
def test_layers_of_one_model_that_are_called_in_turn_are_no_rounds(tmp_path):
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(12))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(3):
            value = torch.randn(512, 256)
            for layer in layers:
                value = layer(value).tanh()
            optimizer.zero_grad()
            value.square().mean().backward()
            optimizer.step()
    (recording,) = vramscope.load(tmp_path).recordings

    assert accumulation(recording) == []


def mlp_of(width=256):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())


def with_importance(path, *, is_summed):
    """Six steps of training; after three of them, the gradient of eight batches' mean loss is asked for."""
    net = mlp_of()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    weights = list(net.parameters())

    def loss():
        return net(torch.randn(512, 256)).square().mean()

    with vramscope.record(path, device="simulated", quiet=True):
        for step in range(6):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            if step == 2:
                if is_summed:
                    torch.autograd.grad(sum(loss() for _ in range(8)), weights)
                else:
                    for _ in range(8):
                        torch.autograd.grad(loss(), weights)
    (recording,) = vramscope.load(path).recordings
    return recording


@pytest.mark.usefixtures("own_tensors_only")
def test_graphs_that_wait_for_one_backward_at_the_peak_are_told_in_however_few_steps(tmp_path):
    """What the edit leaves of the peak is measured: a gradient for each batch."""
    summed, each = (with_importance(tmp_path / str(way), is_summed=way) for way in (True, False))
    (found,) = accumulation(summed)
    saved = summed.timeline().allocated_bytes.max() - each.timeline().allocated_bytes.max()

    assert (found.kind, found.evidence["forwards"]) == ("graphs_before_backward", 8)
    # What the loss makes of a result is not of the forwards.
    assert 0.6 * saved < found.n_bytes < saved
    assert accumulation(each) == []


def rolled_out(path, *, has_gradients):
    """Sixteen decisions of a policy, with what made them; then two updates from their numbers."""
    policy = mlp_of()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(3):
            with torch.set_grad_enabled(has_gradients):
                values = [policy(torch.randn(256, 256)).mean(1) for _ in range(16)]
            goal = torch.cat(values).mean().detach()
            for _ in range(2):
                optimizer.zero_grad()
                (policy(torch.randn(64, 256)).mean() - goal).square().backward()
                optimizer.step()
            del values
    (recording,) = vramscope.load(path).recordings
    return recording


@pytest.mark.usefixtures("own_tensors_only")
def test_graphs_that_outlive_backwards_of_others_are_unused(tmp_path):
    """Each forward but the running one keeps two results of tanh, 256 × 256 numbers of four bytes each."""
    (found,) = accumulation(rolled_out(tmp_path / "with", has_gradients=True))

    assert (found.kind, found.evidence["forwards"]) == ("graphs_without_backward", 15)
    assert found.n_bytes == pytest.approx(15 * 2 * 256 * 256 * 4, rel=0.15)
    assert accumulation(rolled_out(tmp_path / "without", has_gradients=False)) == []


@pytest.mark.usefixtures("own_tensors_only")
def test_results_that_hooks_keep_of_forwards_that_train_are_no_unused_graphs(tmp_path):
    """All that the graphs keep is kept by the hooks too, for eight steps."""
    net, seen = mlp_of(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for layer in net:
        layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for step in range(24):
            optimizer.zero_grad()
            net(torch.randn(256, 256)).square().mean().backward()
            optimizer.step()
            if step % 8 == 7:
                seen.clear()
    (recording,) = vramscope.load(tmp_path).recordings

    assert accumulation(recording) == []
