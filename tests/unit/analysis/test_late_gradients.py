"""Gradients that live longer than they need to, evaluations that keep their results: by doing otherwise."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import vramscope
from vramscope.analysis import analyses
from vramscope.analysis.findings import findings
from vramscope.analysis.strategies import strategies

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20


def recorded(path, program):
    with vramscope.record(path, device="simulated", quiet=True):
        program()
    (found,) = vramscope.load(path).recordings
    return found


def saved_bytes(before, after):
    """The bytes by which the peak of a program is lower after an edit."""
    return before.peak().allocated.n_bytes - after.peak().allocated.n_bytes


def findings_of(recording, name):
    analysis = analyses()[name]
    return analysis.findings(analysis.run(recording))


def net_of(width=512, n_layers=6):
    return nn.Sequential(*(layer for _ in range(n_layers) for layer in (nn.Linear(width, width), nn.Tanh())))


def training(clears):
    def program():
        net = net_of(n_layers=16)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(6):
            if clears == "before forward":
                optimizer.zero_grad()
            loss = net(torch.randn(1024, 512)).square().mean()
            if clears == "after forward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return program


def test_gradients_that_are_cleared_after_forward_raise_the_peak_by_what_moving_the_line_saves(tmp_path):
    late = recorded(tmp_path / "late", training("after forward"))
    early = recorded(tmp_path / "early", training("before forward"))
    truth = saved_bytes(late, early)

    (found,) = findings_of(late, "gradient_storage")

    assert truth > MIB
    assert (found.kind, found.n_bytes) == ("gradients_late", pytest.approx(truth, rel=0.02))
    assert findings_of(early, "gradient_storage") == []


def adversarial(clears):
    """A generator's backward adds to the critic's gradients, which nobody needs."""

    def program():
        maker, critic = net_of(n_layers=8), net_of(n_layers=8)
        of_maker, of_critic = (torch.optim.Adam(each.parameters()) for each in (maker, critic))
        for _ in range(6):
            if clears == "before its turn":
                of_maker.zero_grad()
            fake = maker(torch.randn(512, 512))
            critic(fake).square().mean().backward()
            of_maker.step()
            if clears == "after its step":
                of_maker.zero_grad()
            of_critic.zero_grad()
            (critic(fake.detach()) + critic(torch.randn(512, 512))).square().mean().backward()
            of_critic.step()
            if clears == "after its step":
                of_critic.zero_grad()
            with torch.no_grad():
                maker(torch.randn(4096, 512)).mul(2).add(1).relu()

    return program


@pytest.mark.exhaustive
def test_gradients_of_several_optimizers_save_what_clearing_each_after_its_own_step_does(tmp_path):
    late = recorded(tmp_path / "late", adversarial("before its turn"))
    early = recorded(tmp_path / "early", adversarial("after its step"))
    truth = saved_bytes(late, early)

    (found,) = findings_of(late, "gradient_storage")
    (advised,) = [each for each in strategies(late).advised if each.name == "gradients set to None"]

    assert truth > MIB
    assert (found.kind, found.n_bytes) == ("gradients_late", pytest.approx(truth, rel=0.02))
    assert advised.saved_bytes == found.n_bytes
    assert findings_of(early, "gradient_storage") == []
    other = strategies(early)
    assert "gradients set to None" not in [each.name for each in (*other.advised, *other.undecided)]


def teaching(has_gradients):
    def program():
        student = net_of()
        teacher = copy.deepcopy(student).requires_grad_(has_gradients)
        optimizer = torch.optim.Adam(student.parameters())
        for _ in range(6):
            x = torch.randn(64, 512)
            optimizer.zero_grad()
            (student(x) - teacher(x)).square().mean().backward()
            optimizer.step()

    return program


def test_gradients_that_no_optimizer_clears_are_counted(tmp_path):
    """Six layers of 512 × 512 weights and 512 biases, four bytes each."""
    (found,) = findings_of(recorded(tmp_path / "run", teaching(has_gradients=True)), "gradient_storage")

    assert (found.kind, found.n_bytes) == ("gradients_never_cleared", 6 * (512 * 512 + 512) * 4)
    assert findings_of(recorded(tmp_path / "frozen", teaching(has_gradients=False)), "gradient_storage") == []


def test_gradients_that_the_next_phase_makes_anew_save_nothing(tmp_path):
    """Nobody clears a body's gradients once only its head has an optimizer: each backward adds to them."""

    def training(clears):
        def program():
            body, head = net_of(n_layers=4), net_of(n_layers=8)
            for part in (body, head):
                optimizer = torch.optim.Adam(part.parameters())
                for _ in range(4):
                    if clears == "before forward":
                        optimizer.zero_grad()
                    head(body(torch.randn(256, 512))).square().mean().backward()
                    optimizer.step()
                    if clears == "after step":
                        optimizer.zero_grad()

        return program

    late = recorded(tmp_path / "late", training("before forward"))
    truth = saved_bytes(late, recorded(tmp_path / "early", training("after step")))

    assert truth == 0
    assert "gradients set to None" not in [each.name for each in strategies(late).advised]


def test_zero_grad_is_no_advice_for_gradients_that_it_does_not_reach(tmp_path):
    advised = strategies(recorded(tmp_path, teaching(has_gradients=True))).advised

    assert "gradients set to None" not in [each.name for each in advised]


def test_bytes_with_a_wide_interval_are_an_estimate(tmp_path):
    """Nobody knows what the kept tensors are for, so each figure is within their bytes."""

    def program():
        net, kept = net_of(), []
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(6):
            kept.append(torch.randn(1 << 20))
            optimizer.zero_grad()
            net(torch.randn(64, 512)).square().mean().backward()
            optimizer.step()

    for each in strategies(recorded(tmp_path, program)).advised:
        is_narrow = each.high_bytes - each.low_bytes <= MIB / 4
        assert is_narrow or not each.basis.startswith("exact"), each.name


def evaluating(keeps):
    def program():
        net = nn.Sequential(nn.Linear(16, 4096))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
        kept, total = [], 0.0
        with torch.no_grad():
            for _ in range(10):
                out = net(torch.randn(512 if keeps else 4096, 16))
                total += float(out.mean())
                if keeps:
                    kept.append(out)

    return program


def test_the_gradient_of_an_activation_is_not_cleared_by_an_optimizer(tmp_path):
    """A hook lets a frozen model take part in backward, as PEFT does; gradients of the head are small."""

    def program(clears):
        tower, head = net_of(n_layers=4).requires_grad_(False), nn.Linear(512, 10)
        tower[1].register_forward_hook(lambda *call: call[-1].requires_grad_(True))
        optimizer = torch.optim.AdamW(head.parameters())
        for _ in range(6):
            loss = head(tower(torch.randn(1024, 512))).square().mean()
            if clears == "after forward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if clears == "at once":
                optimizer.zero_grad()

    late, early = (
        recorded(tmp_path / clears, lambda clears=clears: program(clears))
        for clears in ("after forward", "at once")
    )
    truth = saved_bytes(late, early)

    assert truth < 64 << 10
    assert "gradients_late" not in {each.kind for each in findings_of(late, "gradient_storage")}


def test_an_evaluation_that_keeps_its_results_does_not_shrink_with_its_batch(tmp_path):
    """Each of ten batches returns 512 × 4096 numbers of four bytes: 8 MiB."""
    (kept,) = findings_of(recorded(tmp_path / "keeps", evaluating(keeps=True)), "evaluation_peak")
    (large,) = findings_of(recorded(tmp_path / "large", evaluating(keeps=False)), "evaluation_peak")

    assert kept.kind == "evaluation_keeps"
    assert kept.evidence["kept_bytes"] == pytest.approx(8 * 8 * MIB, rel=0.02)
    assert "smaller batches keep as much" in kept.advice
    assert large.kind == "evaluation_peak"


def test_results_that_an_evaluation_keeps_are_as_large_in_halves(tmp_path):
    """The last of ten results is there when all are: of halves as many bytes, and one half less at a time."""

    def halved():
        net, kept = nn.Linear(16, 4096), []
        with torch.no_grad():
            for _ in range(10):
                halves = [net(torch.randn(256, 16)) for _ in range(2)]
                kept.append(torch.cat(halves))

    def whole():
        net, kept = nn.Linear(16, 4096), []
        with torch.no_grad():
            kept.extend(net(torch.randn(512, 16)) for _ in range(10))

    found = strategies(recorded(tmp_path / "whole", whole))
    truth = recorded(tmp_path / "halved", halved).peak().allocated.n_bytes

    for each in (*found.advised, *found.undecided):
        assert each.name != "half the batch in evaluation" or each.high_bytes >= truth - 8 * MIB
    assert "half the batch in evaluation" not in [each.name for each in found.advised]


def test_a_peak_of_evaluation_that_is_a_leaks_advises_nothing_else(tmp_path):
    """Each of twelve evaluations keeps two tensors of 12 MiB for ever, which is all that it needs more."""

    def program():
        net = nn.Sequential(nn.Linear(16, 4096))
        optimizer, kept = torch.optim.SGD(net.parameters(), lr=0.1), []
        for _ in range(12):
            optimizer.zero_grad()
            net(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                kept += [net(torch.randn(768, 16)) for _ in range(2)]
            net.train()

    recording = recorded(tmp_path, program)
    (alone,) = findings_of(recording, "evaluation_peak")

    assert alone.kind == "evaluation_peak"
    assert [each.kind for each in findings(recording) if each.kind in ("leak", alone.kind)] == ["leak"]


def test_a_peak_of_evaluation_without_a_leak_stays(tmp_path):
    found = findings(recorded(tmp_path, evaluating(keeps=False)))

    assert "evaluation_peak" in {each.kind for each in found}


def of_samples(rows=64, lets_go=False):
    """Train by gradients that are summed by hand from those of samples, as with differential privacy."""

    def program():
        net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        per_sample = vmap(
            grad(lambda weights, x: functional_call(net, weights, x).square().mean()), (None, 0)
        )
        for _ in range(6):
            weights = {name: each.detach() for name, each in net.named_parameters()}
            of_each = per_sample(weights, torch.randn(rows, 256))
            for name, each in net.named_parameters():
                each.grad = of_each[name].mean(0)
            optimizer.step()
            optimizer.zero_grad()
            if lets_go:
                del of_each

    return program


def test_gradients_of_samples_are_none_that_an_optimizer_clears_or_ranks_share(tmp_path):
    kept = recorded(tmp_path / "kept", of_samples())
    half = recorded(tmp_path / "half", of_samples(rows=32))
    found = strategies(kept)

    assert saved_bytes(kept, half) > 0.45 * found.peak_bytes
    assert found.advised == ()
    assert not any("micro-batches" in name for name in found.without_effect)


def test_gradients_of_samples_that_a_name_keeps_for_a_step_are_results(tmp_path):
    kept = recorded(tmp_path / "kept", of_samples())
    frees = recorded(tmp_path / "frees", of_samples(lets_go=True))
    (found,) = findings_of(kept, "held_once")

    assert (found.kind, found.n_bytes) == ("step_before_kept", 64 * (256 * 512 + 512 + 512 * 8 + 8) * 4)
    assert found.n_bytes == pytest.approx(saved_bytes(kept, frees), rel=0.05)
    assert findings_of(frees, "held_once") == []


def test_what_is_left_of_parameters_that_are_frozen_is_told_with_their_state(tmp_path):
    def program(lets_go):
        body, head = net_of(), nn.Linear(512, 8)
        optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
        for step in range(12):
            if step == 3:
                body.requires_grad_(False)
                for each in body.parameters() if lets_go else ():
                    each.grad = None
                    optimizer.state.pop(each)
            head.zero_grad()
            head(body(torch.randn(4096 if step > 2 else 64, 512))).square().mean().backward()
            optimizer.step()

    keeps, frees = (recorded(tmp_path / str(each), lambda each=each: program(each)) for each in (False, True))
    (found,) = findings_of(keeps, "gradient_storage")
    left, without = (each.timeline().allocated_bytes[each.steps.end_event[-1]] for each in (keeps, frees))

    assert found.n_bytes == 6 * (512 * 512 + 512) * 4
    assert found.n_bytes + found.evidence["state_bytes"] == left - without
    assert findings_of(frees, "gradient_storage") == []
