"""What nothing uses at the peak is named with its holder; the same program without it is not."""

import copy
import os
import subprocess
import sys
from collections import deque
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import nn

import vramscope
from vramscope.analysis import analyses
from vramscope.analysis.leaks import leaks
from vramscope.model.marks import Steps
from vramscope.model.recording import Outcome
from vramscope.model.stacks import stacks_of
from vramscope.model.trace import Action

pytestmark = pytest.mark.usefixtures("own_tensors_only")

MIB = 1 << 20
ROOT = Path(__file__).parents[3]


def recorded(path, program):
    with vramscope.record(path, device="simulated", quiet=True):
        program()
    (found,) = vramscope.load(path).recordings
    return found


def findings_of(recording):
    analysis = analyses()["held_once"]
    return {each.kind: each for each in analysis.findings(analysis.run(recording))}


def net_of(width=384, n_layers=6):
    return nn.Sequential(*(layer for _ in range(n_layers) for layer in (nn.Linear(width, width), nn.GELU())))


def train(net, optimizer, n_steps=5, width=384):
    for _ in range(n_steps):
        net(torch.randn(64, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def learn(net, teacher):
    """The net comes to answer as its teacher does."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        batch = torch.randn(64, 384)
        with torch.no_grad():
            target = teacher(batch)
        (net(batch) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


WEIGHTS = 6 * (384 * 384 + 384) * 4


@pytest.mark.parametrize("lets_go", [False, True])
def test_weights_that_stay_as_they_were_read(tmp_path, lets_go):
    torch.save(net_of().state_dict(), tmp_path / "weights.pt")

    def resumed():
        net = net_of()
        state = torch.load(tmp_path / "weights.pt")
        net.load_state_dict(state)
        if lets_go:
            del state
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))

    found = findings_of(recorded(tmp_path / "run", resumed))

    if lets_go:
        assert found == {}
        return
    (finding,) = found.values()
    # Each block is rounded up to 512 bytes.
    assert (finding.kind, finding.n_bytes) == ("weights_loaded", pytest.approx(WEIGHTS, rel=0.001))
    assert finding.line == resumed.__code__.co_firstlineno + 2
    assert "the simulated device counts what is in host memory already" in finding.advice


def test_the_state_that_a_checkpoint_brought_is_the_optimizers_before_its_first_step(tmp_path):
    saved = net_of(n_layers=3)
    of_saved = torch.optim.Adam(saved.parameters())
    train(saved, of_saved)
    torch.save(of_saved.state_dict(), tmp_path / "optimizer")
    del saved, of_saved
    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        net = net_of(n_layers=3)
        optimizer = torch.optim.Adam(net.parameters())
        optimizer.load_state_dict(torch.load(tmp_path / "optimizer"))
        net(torch.randn(64, 384)).square().mean().backward()
    (recording,) = vramscope.load(tmp_path / "run").recordings
    state = sum(value.nbytes for each in optimizer.state.values() for value in each.values())

    assert not findings_of(recording)
    rounded = pytest.approx(state, rel=0.01)  # up to blocks of 512 bytes
    assert recording.categories().totals["optimizer_state"] == rounded


def test_a_name_that_is_there_at_the_end_is_given(tmp_path):
    net = net_of()
    shadow = {name: value.clone() for name, value in net.state_dict().items()}

    with vramscope.record(tmp_path, device="simulated", quiet=True):
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (recording,) = vramscope.load(tmp_path).recordings
    (finding,) = findings_of(recording).values()

    assert shadow
    assert (finding.kind, finding.holder) == ("weights_copied", "shadow")
    assert finding.n_bytes == pytest.approx(WEIGHTS, rel=0.001)
    assert finding.severity == "info"


def test_a_third_copy_is_named_beside_a_teacher(tmp_path):
    # Both models have parameters, so the copy has half of all their bytes: those of one model.
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        net = net_of()
        teacher = copy.deepcopy(net)
        shadow = {name: value.clone() for name, value in teacher.state_dict().items()}
        learn(net, teacher)
    (recording,) = vramscope.load(tmp_path).recordings
    (finding,) = findings_of(recording).values()

    assert shadow
    assert (finding.kind, finding.holder) == ("weights_copied", "shadow")
    assert finding.n_bytes == pytest.approx(WEIGHTS, rel=0.001)


@pytest.mark.parametrize(("is_all", "model"), [(True, 8 * MIB), (False, 8 * MIB), (False, MIB // 8)])
def test_workspaces_that_are_all_that_is_left(recording, is_all, model):
    """A model that stays is left too, however small it is beside the workspace."""
    stacks = stacks_of([("at::cuda::(anonymous namespace)::getNewWorkspace()", "CUDABlas.cpp", 0)])
    events = [(Action.ALLOC, 0, 32 * MIB, len(stacks) - 1), (Action.ALLOC, 64 * MIB, model)]
    freed = [(action, 64 * MIB, model) for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
    steps = Steps.of(index=[0], start_event=[0], end_event=[2], start_ns=[0], end_ns=[1])
    made = recording(*events, *(freed if is_all else ()), stacks=stacks, steps=steps)

    found = findings_of(replace(made, outcome=Outcome.FINISHED))

    assert [(each.kind, each.n_bytes) for each in found.values()] == (
        [("workspace_left", 32 * MIB)] if is_all else []
    )


def test_data_on_the_device_are_no_copy_of_the_weights(tmp_path):
    data = [torch.randn(1000, 384) for _ in range(6)]
    net = net_of()

    with vramscope.record(tmp_path, device="simulated", quiet=True):
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
    (recording,) = vramscope.load(tmp_path).recordings

    assert data
    assert findings_of(recording) == {}


@pytest.mark.parametrize("keeps", [True, False])
def test_a_kept_exception_holds_what_its_call_had(tmp_path, keeps):
    failures = {}

    def attempt(net):
        hidden = [net(torch.randn(1024, 384))]
        raise ValueError(len(hidden))

    def program():
        net = net_of()
        try:
            attempt(net)
        except ValueError as error:
            failures["last"] = error if keeps else str(error)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
        assert failures

    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        program()
    (recording,) = vramscope.load(tmp_path / "run").recordings
    found = findings_of(recording)

    if not keeps:
        assert found == {}
        return
    (finding,) = found.values()
    # Six linear layers and what GELU saved: twelve times the output of a layer, one of which is the result.
    assert (finding.kind, finding.severity) == ("exception_kept", "warning")
    assert finding.n_bytes == pytest.approx(13 * 1024 * 384 * 4, rel=0.1)
    assert finding.holder == "failures"


def test_an_exception_that_ends_the_program_is_not_kept(tmp_path):
    net = net_of()

    def program():
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
        hidden = net(torch.randn(4096, 384))
        raise ValueError(hidden.shape)

    with pytest.raises(ValueError, match="4096"), vramscope.record(tmp_path, device="simulated", quiet=True):
        program()
    (recording,) = vramscope.load(tmp_path).recordings

    assert findings_of(recording) == {}


@pytest.mark.parametrize("then", ["again", "later", "other"])
def test_an_except_clause_that_calls_again_keeps_what_failed(tmp_path, then):
    """The call in the clause fails, too; where the clause is left before, or raises, nothing is kept."""
    net = net_of()

    def attempt(n_rows, limit=4):
        hidden = net(torch.randn(n_rows, 384))
        if n_rows > limit:
            raise MemoryError(n_rows)
        return hidden

    def program():
        train(net, torch.optim.SGD(net.parameters(), lr=0.1))
        try:
            attempt(2048)
        except MemoryError as error:
            if then == "again":
                attempt(512)
            elif then == "other":
                raise ValueError(2048) from error
        attempt(512)

    ended = pytest.raises(ValueError if then == "other" else MemoryError)
    with ended, vramscope.record(tmp_path, device="simulated", quiet=True):
        program()
    (recording,) = vramscope.load(tmp_path).recordings
    found = findings_of(recording)

    assert [*found] == (["exception_kept"] if then == "again" else [])
    if found:
        # Twelve outputs of a layer, and what they were made from.
        assert found["exception_kept"].n_bytes == pytest.approx(13 * 2048 * 384 * 4, rel=0.1)
        assert found["exception_kept"].advice.startswith("call again after the except clause")


BATCHES = """
import gc, sys
import torch
from torch import nn
import vramscope

class Batch:
    def __init__(self, x, is_cycle):
        self.x = x
        self.views = [lambda: self.x] if is_cycle else []

gc.collect()
gc.disable()
net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with vramscope.record(sys.argv[1], device="simulated", quiet=True):
    for step in range(42):
        batch = Batch(torch.randn(1024, 64), sys.argv[2] == "True")
        net(batch.x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del batch
        if step % 14 == 13:
            gc.collect()
"""


@pytest.mark.parametrize("is_cycle", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_objects_that_wait_for_the_collector(tmp_path, is_cycle):
    # In a process of its own: what other tests left in cycles would be collected with it.
    script = tmp_path / "batches.py"
    script.write_text(BATCHES)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "run"), str(is_cycle)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    (recording,) = vramscope.load(tmp_path / "run").recordings
    found = findings_of(recording)

    if not is_cycle:
        assert found == {}
        return
    (finding,) = found.values()
    assert finding.kind == "garbage"
    # Before each collection 13 batches of earlier steps are there, beside the step's own; one may be named.
    assert 12 * 1024 * 64 * 4 <= finding.n_bytes <= 13 * 1024 * 64 * 4
    assert "Batch" in finding.claim


def test_copies_that_a_list_keeps_of_ever_more_steps_are_left_to_the_leak(tmp_path):
    def history():
        net, kept = net_of(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(10):
            train(net, optimizer, 1)
            kept.append(copy.deepcopy(net.state_dict()))

    found = recorded(tmp_path / "run", history)

    assert len(found.leaks().leaks) == 1
    assert findings_of(found) == {}


@pytest.mark.parametrize("then", ["drops it", "keeps it", "asks it"])
def test_models_whose_training_is_over(tmp_path, then):
    """Five folds, each with a model of its own: four of them are over when the last one trains."""

    def folds():
        kept = []
        for _ in range(5):
            net = net_of()
            train(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
            if then != "drops it":
                kept.append({"net": net})
            if then == "asks it":
                for each in kept:
                    each["net"](torch.randn(4, 384))
        return kept

    with vramscope.record(tmp_path / "run", device="simulated", quiet=True):
        kept = folds()
    (recording,) = vramscope.load(tmp_path / "run").recordings
    found = findings_of(recording)

    assert len(kept) == (0 if then == "drops it" else 5)
    if then != "keeps it":
        assert "models_left" not in found
        return
    # The optimizers are gone, and zero_grad() has let go of the gradients.
    assert found["models_left"].n_bytes == pytest.approx(4 * WEIGHTS, rel=0.001)
    assert found["models_left"].holder == "kept"


def test_models_that_are_left_are_told_at_the_line_that_made_them(tmp_path):
    """The state of Adam, made by the optimizer's step, is twice as large as the weights."""

    def folds():
        kept = []
        for _ in range(3):
            net = net_of()
            optimizer = torch.optim.Adam(net.parameters())
            train(net, optimizer)
            kept.append((net, optimizer))

    found = findings_of(recorded(tmp_path / "run", folds))

    assert found["models_left"].function in ("net_of", "<genexpr>")


def test_an_earlier_model_that_the_next_one_learns_from_is_in_use(tmp_path):
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        teacher, net = net_of(), net_of()
        train(teacher, torch.optim.SGD(teacher.parameters(), lr=0.1))
        learn(net, teacher)
    (recording,) = vramscope.load(tmp_path).recordings

    assert "models_left" not in findings_of(recording)


@pytest.mark.parametrize("n_models", [3, 9])
@pytest.mark.parametrize("is_method", [True, False])
def test_models_that_a_cache_on_a_method_keeps(tmp_path, is_method, n_models):
    """The growth of many models is reported, and a cache whose bound is not reached yet is no buffer."""

    @lru_cache(64)
    def ones(_, length):
        return torch.ones(length, 384)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net_of()

        def forward(self, x):
            return self.net(x + ones(self if is_method else None, len(x)))

    def program():
        for _ in range(n_models):
            net = Net()
            train(net, torch.optim.SGD(net.parameters(), lr=0.1))
            del net

    recording = recorded(tmp_path, program)
    few, many = findings_of(recording).get("models_left"), recording.leaks()

    assert [few is not None, bool(many.leaks), len(many.filling)] == [
        is_method and n_models == 3, is_method and n_models == 9, 0
    ]  # fmt: skip
    if is_method:
        said = few or many.leaks[0].finding
        assert said.advice.startswith("a cache on a method keeps each object that it is called on (self)")
        assert "ones" in said.holder


@pytest.mark.parametrize("given", ["itself", "copy", "weights"])
def test_gradients_of_inputs_that_are_used_again(tmp_path, given):
    """Batches that lie on the device are asked for gradients; or the tensors are trained by hand."""

    def program():
        net = net_of()
        pool = [torch.randn(512, 384) for _ in range(8)]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for turn in range(16):
            if given == "weights":
                batch = sum(each.requires_grad_() for each in pool) / 8
            else:
                batch = pool[turn % 8] if given == "itself" else pool[turn % 8].detach()
                batch.requires_grad_()
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = findings_of(recorded(tmp_path, program))

    assert [*found] == (["gradients_never_cleared"] if given == "itself" else [])
    if found:
        said = found["gradients_never_cleared"]
        # All but that of the running step, and one that the loop's own variable holds as well.
        assert said.holder == "pool"
        assert said.n_bytes == pytest.approx(7 * 512 * 384 * 4, rel=0.15)


MODELS = """
import gc, sys
import torch
from torch import nn
import vramscope

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
        self.layers.register_forward_hook(lambda *_: self.seen())
    def seen(self):
        pass
    def forward(self, x):
        return self.layers(x)

gc.collect()
gc.disable()
with vramscope.record(sys.argv[1], device="simulated", quiet=True):
    for trial in range(17):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            net(torch.randn(32, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if trial == 14:
            gc.collect()
"""


def test_models_that_wait_for_the_collector_are_told_once(tmp_path):
    """Each was let go when the next was made, so there is nothing to drop."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = tmp_path / "models.py"
    program.write_text(MODELS, encoding="utf-8")
    subprocess.run([sys.executable, program, tmp_path / "run"], env=env, check=True, timeout=300)
    (recording,) = vramscope.load(tmp_path / "run").recordings

    assert [*findings_of(recording)] == ["garbage"]


class Evaluation:
    """Keeps what its batches gave, until the next one begins or until it ends."""

    def __init__(self, lets_go):
        self.lets_go, self.outputs = lets_go, []

    def run(self, net):
        self.outputs = []
        with torch.no_grad():
            self.outputs.extend(net(torch.randn(256, 384)) for _ in range(8))
        if self.lets_go:
            self.outputs.clear()


@pytest.mark.parametrize("lets_go", [False, True])
def test_what_an_evaluation_leaves_is_there_while_training_goes_on(tmp_path, lets_go):
    """Eight outputs of 384 KiB stay."""

    def program():
        net, evaluation = net_of(), Evaluation(lets_go)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net.train()
            train(net, optimizer)
            net.eval()
            evaluation.run(net)
        net.train()
        net(torch.randn(640, 384)).square().mean().backward()
        optimizer.step()

    found = findings_of(recorded(tmp_path / "run", program)).get("evaluation_left")

    if lets_go:
        assert found is None
    else:
        assert found.n_bytes == 8 * 384 << 10
        assert "an evaluation that is over" in found.claim


def test_a_statement_that_fills_several_lists_is_told_once(tmp_path):
    """Three layers keep 64 KiB of each of twenty steps, in a list for each layer."""

    def program():
        net = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3)))

        def keep(layer, inputs, _):
            layer.seen = getattr(layer, "seen", [])
            layer.seen.append(inputs[0].detach() + 1)

        for layer in net:
            layer.register_forward_hook(keep)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 20, width=128)

    (leak,) = leaks(recorded(tmp_path / "run", program)).leaks

    assert leak.bytes_per_step == pytest.approx(3 * 64 * 128 * 4, rel=0.05)
    assert leak.n_others == 2
    assert "as 2 others do" in leak.finding.claim


def test_models_whose_inputs_are_attributed_in_turn_were_not_trained(tmp_path):
    def program():
        models = [net_of() for _ in range(4)]
        for net in models:
            inputs = torch.randn(64, 384, requires_grad=True)
            net(inputs).sum().backward()

    assert "models_left" not in findings_of(recorded(tmp_path / "run", program))


def peak_of(recording):
    return int(recording.timeline().allocated_bytes.max())


@pytest.mark.parametrize("is_list", [True, False])
def test_what_an_epoch_keeps_of_its_steps(tmp_path, is_list):
    """What goes when one of the last eight comes is no collection; what the edit saves is measured."""

    def program(keeps):
        net = net_of(n_layers=2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        last = deque(maxlen=8)
        for _ in range(3):
            outputs = []
            for _ in range(8):
                batch = torch.randn(512, 384)
                loss = net(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if keeps:
                    (outputs if is_list else last).append(2 * batch)

    kept, without = (recorded(tmp_path / str(keeps), lambda keeps=keeps: program(keeps)) for keeps in (1, 0))

    assert "steps_kept" not in findings_of(without)
    finding = findings_of(kept).get("steps_kept")
    if not is_list:
        assert finding is None
        return
    assert finding.holder == "outputs"
    assert finding.line == program.__code__.co_firstlineno + 13
    # What comes after a step is of the next one; and what is of this step is its own.
    assert finding.n_bytes == 6 * 512 * 384 * 4
    assert finding.n_bytes <= peak_of(kept) - peak_of(without)


@pytest.mark.parametrize("lets_go", [False, True])
def test_results_of_the_step_before_that_live_while_the_next_are_made(tmp_path, lets_go):
    def program(*, lets_go):
        net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4096))
        with torch.no_grad():
            for _ in range(6):
                scores = net(torch.randn(256, 64))
                float(scores.max())
                if lets_go:
                    del scores

    holds, frees = (
        recorded(tmp_path / str(each), lambda each=each: program(lets_go=each)) for each in (False, True)
    )
    finding = findings_of(frees if lets_go else holds).get("step_before_kept")

    if lets_go:
        assert finding is None
        return
    assert finding.n_bytes == 256 * 4096 * 4
    assert finding.n_bytes == pytest.approx(peak_of(holds) - peak_of(frees), rel=0.1)


@pytest.mark.parametrize("use", ["before", "let go", "in each step", "as an average"])
def test_a_model_that_ran_before_training_alone(tmp_path, use):
    def program():
        body, head = net_of(), nn.Linear(384, 384)
        if use == "as an average":
            body = copy.deepcopy(head)
        with torch.no_grad():
            features = [body(torch.randn(64, 384)) for _ in range(6)]
        if use == "let go":
            del body
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for each in features:
            batch = body(each).detach() if use == "in each step" else each
            head(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if use == "as an average":
                with torch.no_grad():
                    for average, value in zip(body.parameters(), head.parameters(), strict=True):
                        average.lerp_(value, 0.1)

    finding = findings_of(recorded(tmp_path, program)).get("models_left")

    if use != "before":
        assert finding is None
        return
    assert finding.n_bytes == 6 * (384 * 384 + 384) * 4
    assert "run in no step since" in finding.claim
    assert finding.line == net_of.__code__.co_firstlineno + 1


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(3000, 256), nn.Linear(256, 8)

    def forward(self, words):
        return self.head(self.embedding(words).mean(1))


@pytest.mark.parametrize("then", ["the optimizer", "the words", "by hand", "later"])
def test_parameters_that_an_optimizer_keeps_of_a_module_that_was_replaced(tmp_path, then):
    def program():
        model, loose = Words(), nn.Parameter(torch.randn(700, 1024))
        extra = [loose] if then == "by hand" else []
        late = nn.Linear(1024, 768) if then == "later" else None
        if then != "the words":
            model.embedding = nn.Embedding(3100, 256)
        parameters = [*model.parameters(), *extra, *(late.parameters() if late else ())]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if then == "the words":
            model.embedding = nn.Embedding(3100, 256)
        for step in range(6):
            loss = model(torch.randint(0, 3000, (8, 16))).square().mean()
            if extra:
                loss = loss + loose.square().mean()
            if late and step > 2:
                loss = loss + late(torch.randn(8, 1024)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    finding = findings_of(recorded(tmp_path, program)).get("parameters_replaced")

    if then != "the words":
        assert finding is None
        return
    assert finding.n_bytes == 3000 * 256 * 4
