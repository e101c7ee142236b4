"""Costs that a recording shows for certain: of programs whose figures are counted by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis import analyses
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

pytestmark = pytest.mark.usefixtures("own_tensors_only")

KIB, MIB = 1 << 10, 1 << 20


class Attention(nn.Module):
    """Written by hand: keeps the scores and their softmax, four bytes each."""

    def __init__(self, width=64):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def recorded(path, program):
    with vramscope.record(path, device="simulated", quiet=True):
        program()
    (found,) = vramscope.load(path).recordings
    return found


def findings_of(recording, name):
    analysis = analyses()[name]
    return analysis.findings(analysis.run(recording))


def train(model, batches, **backward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward(**backward)
        optimizer.step()


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_scores_of_attention_grow_with_the_square_of_the_length(tmp_path):
    lengths = [128, 128, 256, 384, 512, 256]
    recording = recorded(
        tmp_path / "run", lambda: train(Attention(), [torch.randn(4, n, 64) for n in lengths])
    )
    (found,) = findings_of(recording, "scaling")

    assert found.kind == "quadratic_memory"
    assert found.severity == "info"
    assert found.line == line_of("(q @ k.transpose")
    # At least the scores' softmax, and its gradient.
    assert found.n_bytes >= 2 * 4 * 512 * 512 * 4


def test_a_larger_batch_is_no_square(tmp_path):
    sizes = [4, 4, 8, 12, 16, 8]
    recording = recorded(
        tmp_path / "run", lambda: train(Attention(), [torch.randn(n, 128, 64) for n in sizes])
    )
    verdicts = findings_of(recording, "scaling")
    assert len(verdicts) == 1, f"{recording.scaling()}, {recording.steps}, {recording.notes}"
    (found,) = verdicts

    assert found.kind == "batch_dominates"
    assert found.n_bytes <= found.evidence["peak_bytes"]


def test_larger_batches_of_an_inference_are_not_to_be_accumulated(tmp_path):
    sizes = [4, 4, 8, 12, 16, 8]

    def program():
        net = Attention()
        with torch.no_grad():
            for n in sizes:
                net(torch.randn(n, 128, 64))

    assert "batch_dominates" not in {
        each.kind for each in findings_of(recorded(tmp_path / "run", program), "scaling")
    }


@pytest.mark.parametrize("lengths", [[256] * 6, [128, 128, 256, 256, 128, 256]], ids=["one", "two"])
def test_fewer_than_three_sizes_give_no_verdict(tmp_path, lengths):
    recording = recorded(
        tmp_path / "run", lambda: train(Attention(), [torch.randn(4, n, 64) for n in lengths])
    )

    assert findings_of(recording, "scaling") == []


def test_graphs_that_are_summed_before_one_backward_are_counted(tmp_path):
    def program():
        model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh())
        for _ in range(4):
            losses = [model(torch.randn(256, 256)).mean() for _ in range(4)]
            sum(losses).backward()
            model.zero_grad()

    (found,) = findings_of(recorded(tmp_path / "run", program), "accumulation")

    assert found.evidence["forwards"] == 4
    # Each keeps what tanh gave: 256 rows of 1,024 numbers of four bytes.
    assert found.evidence["one_forward_bytes"] == MIB
    assert found.evidence["kept_bytes"] == 4 * MIB


def test_layers_of_one_model_that_the_program_calls_one_after_another_are_no_accumulation(tmp_path):
    def program():
        layer = lambda: nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256))  # noqa: E731
        model = nn.Sequential(*(layer() for _ in range(6)))
        for _ in range(4):
            x = torch.randn(256, 256)
            for block in model:
                x = block(x)
            x.square().mean().backward()
            model.zero_grad()

    assert findings_of(recorded(tmp_path / "run", program), "accumulation") == []


def test_two_towers_and_a_backward_after_each_forward_are_no_accumulation(tmp_path):
    def program():
        model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh())
        for _ in range(4):
            for _ in range(4):
                model(torch.randn(256, 256)).mean().backward()
            first, second = model(torch.randn(256, 256)), model(torch.randn(256, 256))
            (first - second).mean().backward()
            model.zero_grad()

    assert findings_of(recorded(tmp_path / "run", program), "accumulation") == []


@pytest.mark.parametrize("retains", [True, False])
def test_what_a_retained_graph_keeps_is_reported(tmp_path, retains):
    # Wide and narrow: the output, which the program may hold, is small.
    model = nn.Sequential(nn.Linear(64, 4096), nn.Tanh(), nn.Linear(4096, 1))
    batches = [torch.randn(256, 64) for _ in range(6)]
    recording = recorded(tmp_path / "run", lambda: train(model, batches, retain_graph=retains))
    found = findings_of(recording, "retained_graphs")

    assert len(found) == retains
    # What tanh gave, which two layers saved.
    assert all(256 * 4096 * 4 <= each.n_bytes <= 256 * 4096 * 4 + 64 * KIB for each in found)


@pytest.mark.parametrize(("rows", "is_told"), [(4096, True), (16, False)])
def test_an_evaluation_that_needs_more_than_training_is_reported(tmp_path, rows, is_told):
    model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 2048))
    truth = []

    def program():
        batches = [torch.randn(32, 256) for _ in range(4)]
        train(model, batches)
        with torch.no_grad():
            truth.append(model(torch.randn(rows, 256)).nbytes)

    found = findings_of(recorded(tmp_path / "run", program), "evaluation_peak")

    assert len(found) == is_told
    assert all(each.evidence["evaluation_peak_bytes"] > truth[0] for each in found)


@pytest.mark.parametrize(
    ("to_none", "place", "is_told"),
    [(False, "before", True), (True, "before", False), (True, "after", False), (None, "never", True)],
)
def test_gradients_that_stay_from_step_to_step_are_reported(tmp_path, to_none, place, is_told):
    model = nn.Linear(512, 1024, bias=False)

    def program():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            if place == "before":
                optimizer.zero_grad(set_to_none=to_none)
            loss = model(torch.randn(8, 512)).square().mean()
            if place == "after":
                optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            optimizer.step()

    found = findings_of(recorded(tmp_path / "run", program), "gradient_storage")

    assert [each.kind for each in found] == ["gradients_kept"] * is_told
    assert all((each.n_bytes, each.severity) == (512 * 1024 * 4, "info") for each in found)


def test_gradients_that_are_accumulated_over_micro_batches_are_needed(tmp_path):
    model = nn.Linear(512, 1024, bias=False)

    def program():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(12):
            model(torch.randn(8, 512)).square().mean().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    assert findings_of(recorded(tmp_path / "run", program), "gradient_storage") == []


def test_a_critic_that_trains_more_often_makes_its_gradients_again(tmp_path):
    """The generator's gradients wait while the critic trains: they go as soon as its own turn comes."""
    critic, generator = nn.Linear(512, 1024, bias=False), nn.Linear(512, 512, bias=False)

    def program():
        both = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, generator)]
        for number in range(16):
            optimizer = both[number % 4 == 3]
            optimizer.zero_grad()
            critic(generator(torch.randn(8, 512))).square().mean().backward()
            optimizer.step()

    assert findings_of(recorded(tmp_path / "run", program), "gradient_storage") == []


def emptied(recording, n_calls):
    """A loop that takes 20 MiB, lets go of it, and gives it back to the driver."""
    rows = []
    for _ in range(n_calls):
        rows += [(Action.SEGMENT_ALLOC, MIB << 10, 20 * MIB, 1), (Action.ALLOC, MIB << 10, 20 * MIB, 1)]
        rows += [(Action.FREE_REQUESTED, MIB << 10, 20 * MIB), (Action.FREE_COMPLETED, MIB << 10, 20 * MIB)]
        rows += [(Action.SEGMENT_FREE, MIB << 10, 20 * MIB, 3)]
    stacks = stacks_of(
        [("train", "train.py", 7)], [("empty_cache", "torch/cuda/memory.py", 1), ("train", "train.py", 9)]
    )
    return recording(*rows, stacks=stacks)


def test_empty_cache_in_the_loop_is_counted(recording):
    (found,) = findings_of(emptied(recording, 5), "empty_cache")

    assert found.evidence == {
        "calls": 5,
        "released_bytes": 100 * MIB,
        "driver_releases": 5,
        "driver_allocations": 4,
    }
    assert found.n_bytes == 80 * MIB
    assert (found.file, found.line) == ("train.py", 9)


def test_empty_cache_once_is_not_worth_a_word(recording):
    assert findings_of(emptied(recording, 1), "empty_cache") == []


@pytest.mark.parametrize(("number", "is_told"), [(6000, True), (600, False)])
def test_thousands_of_small_tensors_a_step_are_reported(tmp_path, number, is_told):
    def program():
        model = nn.Linear(8, 8)
        for _ in range(3):
            kept = [torch.zeros(1) for _ in range(number)]
            model(torch.randn(8, 8)).sum().backward()
            del kept

    found = findings_of(recorded(tmp_path / "run", program), "small_allocations")

    assert [each.evidence["per_step"] for each in found] == [number] * is_told


def test_none_of_these_is_more_than_a_remark(recording):
    """They cost, or they are meant: nobody knows."""
    assert np.unique(
        [each.severity for each in findings_of(emptied(recording, 9), "empty_cache")]
    ).tolist() == ["info"]


def one_step(net, optimizer, batch, loss=lambda out: out.square().mean()):
    optimizer.zero_grad()
    loss(net(batch)).backward()
    optimizer.step()


def bank_of_rows(path):
    def program():
        net, bank = nn.Linear(256, 128), torch.empty(0, 128)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(24):
            rows = torch.cat([torch.randn(64, 128), bank])
            one_step(net, optimizer, torch.randn(64, 256), lambda out, rows=rows: (out @ rows.T).mean())
            bank = rows.detach()  # The bank is kept.

    return recorded(path, program)


def memory_above_a_megabyte(path):
    """Blocks of a megabyte and more, of which a rest of up to as much is not split off."""

    def program():
        net, memory = nn.Linear(512, 8), torch.zeros(64, 512)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(30):
            rows = torch.cat([torch.randn(128, 512), memory])
            one_step(net, optimizer, rows)
            memory = torch.cat([memory, rows[:16]])

    return recorded(path, program)


def batches_fetched_ahead(path):
    def program():
        net, ahead = nn.Linear(256, 128), torch.randn(256, 256)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(24):
            batch = ahead
            ahead = torch.randn(256 + 64 * step, 256)
            one_step(net, optimizer, batch)

    return recorded(path, program)


def schedules(path):
    def program():
        net, kept = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)), {"schedules": []}
        for _ in range(10):
            optimizer = torch.optim.AdamW(net.parameters())
            kept["schedules"].append(torch.optim.lr_scheduler.StepLR(optimizer, 3))
            for _ in range(3):
                one_step(net, optimizer, torch.randn(32, 256))

    return recorded(path, program)


@pytest.mark.parametrize(
    ("program", "kind", "cause", "holder", "kept"),
    [
        (bank_of_rows, "leak", "growing_tensor", "bank", "# The bank is kept."),
        (memory_above_a_megabyte, "leak", "growing_tensor", "memory", "memory = torch.cat([memory"),
        (batches_fetched_ahead, "growing_batch", "growing_batch", "batch", None),
        (schedules, "leak", "kept_optimizer", "kept['schedules']", 'kept["schedules"].append('),
    ],
)
def test_what_a_loop_carries_on_and_makes_longer_is_no_batch(tmp_path, program, kind, cause, holder, kept):
    recording = program(tmp_path)
    (finding,) = findings_of(recording, "leaks")

    assert [each.cause for each in recording.leaks().leaks] == [cause] * (kind == "leak")
    assert (finding.kind, finding.cause, finding.holder) == (kind, cause, holder)
    if kept is not None:
        assert finding.evidence["kept_at"]["line"] == line_of(kept)


class Remembering(nn.Module):
    """Attention whose keys and values are handed on, with those before them."""

    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, x, past):
        keys, values = self.key(x), self.value(x)
        if past is not None:
            keys, values = torch.cat((past[0], keys), 1), torch.cat((past[1], values), 1)
        return x + nn.functional.scaled_dot_product_attention(x, keys, values), (keys, values)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Remembering() for _ in range(3))

    def forward(self, x, past):
        present = []
        for layer, before in zip(self.layers, past, strict=True):
            x, keys = layer(x, before)
            present.append(keys)
        return x, present


@pytest.mark.parametrize(("keeps_graphs", "cause"), [(True, "undetached_state"), (False, "growing_tensor")])
def test_tables_handed_on_count_once_with_their_graphs_or_without(tmp_path, keeps_graphs, cause):
    """The keys of a later layer keep the tables of the layer before by its attention."""

    def program():
        decoder, past = Decoder(), [None] * 3
        with torch.set_grad_enabled(keeps_graphs):
            for _ in range(40):
                _, past = decoder(torch.randn(32, 1, 128), past)

    recording = recorded(tmp_path, program)
    found = recording.leaks().leaks

    assert found[0].cause == cause
    assert sum(int(each.level_bytes[-1]) for each in found) <= recording.peak().allocated.n_bytes
