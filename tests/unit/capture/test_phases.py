"""The marks say what an unchanged program did: each phase once, at its outermost call, to its end."""

import threading
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from vramscope.capture import hooks
from vramscope.capture.hooks.modules import ModuleLog
from vramscope.model.marks import MarkKind, Phase


class Written:
    """A listener that writes down each call."""

    def __init__(self):
        self.lines = []
        self.failures = []
        self.error = None

    def mark(self, kind, phase=Phase.OTHER, value=0, name=""):  # noqa: ARG002
        if self.error is not None:
            raise self.error
        if kind != MarkKind.GC:
            self.lines.append({MarkKind.PHASE_BEGIN: "+", MarkKind.PHASE_END: "-"}[kind] + phase.name.lower())

    def forward_begins(self, module):
        pass

    def forward_ends(self, inputs, result):
        pass

    def backward_ends(self):
        pass

    def step_begins(self, optimizer):
        pass

    def step_ends(self, optimizer):
        pass

    def failed(self, error):
        self.failures.append(error)


@pytest.fixture(params=["roots alone", "every module"])
def written(request):
    """Both ways of seeing forwards write down the same calls."""
    listener = Written()
    if request.param == "every module":
        listener.modules = ModuleLog(is_timed=True)
    hooks.install(listener)
    yield listener
    hooks.uninstall()
    hooks.forget_thread()


def network(n_in=4):
    return nn.Sequential(nn.Linear(n_in, 4), nn.ReLU(), nn.Linear(4, 1))


def both(*phases):
    return [sign + phase for phase in phases for sign in "+-"]


def test_a_plain_step(written):
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    assert written.lines == both("forward", "backward", "optimizer", "zero_grad")


def test_without_gradients_a_forward_is_evaluation(written):
    with torch.no_grad():
        network()(torch.ones(2, 4))
    with torch.inference_mode():
        network()(torch.ones(2, 4))

    assert written.lines == both("eval", "eval")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_forward_runs_again_inside_backward(written, use_reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    Model()(torch.ones(2, 4, requires_grad=True)).sum().backward()

    assert written.lines == [*both("forward"), "+backward", *both("recompute"), "-backward"]


def test_gradients_taken_within_a_forward(written):
    class Slope(nn.Module):
        def forward(self, x):
            return torch.autograd.grad(x.pow(2).sum(), x, create_graph=True)[0]

    Slope()(torch.ones(2, 4, requires_grad=True))

    assert written.lines == ["+forward", *both("backward"), "-forward"]


def test_a_loop_within_a_forward_has_forwards_of_its_own(written):
    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = network()

        def forward(self):
            optimizer = torch.optim.SGD(self.model.parameters())
            for batch in DataLoader(torch.ones(4, 4), batch_size=2):
                self.model(batch).sum().backward()
                optimizer.step()
            with suppress(RuntimeError):
                self.model(torch.ones(2, 5))
            with torch.no_grad():
                self.model(batch)

    trainer = Trainer()
    trainer()
    network()(torch.ones(2, 4))
    trainer.model(torch.ones(2, 4))

    step = both("data", "forward", "backward", "optimizer")
    inside = [*step, *step, *both("data", "forward", "eval")]
    assert written.lines == ["+forward", *inside, "-forward", *both("forward", "forward")]


def test_what_runs_a_loop_deep_within_a_forward_ends_alone(written):
    class Fit(nn.Module):
        def forward(self, model):
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()

    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fit, self.model = Fit(), network()

        def forward(self):
            self.fit(self.model)

    Trainer()()
    network()(torch.ones(2, 4))

    inside = both("zero_grad", "forward", "backward") * 2
    assert written.lines == ["+forward", *inside, "-forward", *both("forward")]


def test_a_closure_runs_inside_of_the_optimizer(written):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)

    assert written.lines == ["+optimizer", *both("zero_grad", "forward", "backward"), "-optimizer"]


def test_an_exception_in_forward_ends_it(written):
    with pytest.raises(RuntimeError):
        network()(torch.ones(2, 5))
    network()(torch.ones(2, 4))

    assert written.lines == both("forward", "forward")


def test_an_exception_in_backward_ends_it(written):
    loss = network()(torch.ones(2, 4)).sum()
    loss.backward()
    with pytest.raises(RuntimeError):
        loss.backward()

    assert written.lines == both("forward", "backward", "backward")


def test_an_optimizer_that_raised_ends_at_the_next_phase(written):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):  # noqa: ARG002
            raise ValueError("no")

    model = network()
    optimizer = Broken(model.parameters(), lr=0.1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
    model(torch.ones(2, 4))

    assert written.lines == both("optimizer", "optimizer", "forward")


class Interrupted(nn.Module):
    def forward(self, x):  # noqa: ARG002
        raise KeyboardInterrupt


def test_a_forward_that_was_interrupted_ends_at_the_next_phase(written):
    model = network()
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(KeyboardInterrupt):
        nn.Sequential(Interrupted())(torch.ones(1))
    loss.backward()
    model(torch.ones(2, 4))

    assert written.lines == both("forward", "forward", "backward", "forward")


@pytest.mark.parametrize("written", ["every module"], indirect=True)
def test_threads_have_phases_of_their_own(written):
    inside, go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x):
            inside.set()
            go_on.wait(10)
            return x

    thread = threading.Thread(target=Slow(), args=(torch.ones(1),), daemon=True)
    thread.start()
    inside.wait(10)
    network()(torch.ones(2, 4))
    go_on.set()
    thread.join()

    assert written.lines == ["+forward", *both("forward"), "-forward"]


@pytest.mark.parametrize("written", ["roots alone"], indirect=True)
def test_the_parts_of_a_root_are_called_as_without_us(written):
    hooks, seen = nn.modules.module._global_forward_pre_hooks, []

    class Part(nn.Module):
        def forward(self, x):
            seen.append(list(hooks))
            return x

    model = nn.Sequential(Part(), Part())
    model(torch.ones(1))

    assert seen == [[], []]
    assert len(hooks) == 1
    assert written.lines == both("forward")


@pytest.mark.parametrize("written", ["roots alone"], indirect=True)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_root_is_as_it_was_whatever_ends_it(written, error):
    class Root(nn.Linear):
        def forward(self, x):
            if not len(x):
                raise error
            return super().forward(x)

    root = Root(4, 4)
    before = repr(vars(root))
    for n_rows in (2, 0, 2):
        with suppress(error):
            root(torch.ones(n_rows, 4))
        # Ctrl-C passes torch's hooks by; whatever the program does next puts things right.
        torch.optim.SGD(root.parameters()).step()

    assert repr(vars(root)) == before
    assert written.lines == both("forward", "optimizer") * 3
    assert not written.failures


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_its_phases_and_compiles_once(written, backend):
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = torch.compile(network(), backend=backend)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        hooks.uninstall()
        hooks.install(written)

    assert written.lines == both("forward", "backward", "optimizer") * 3
    assert counters["stats"]["unique_graphs"] == 1


def test_our_own_mistake_stays_with_us(written):
    written.error = ZeroDivisionError("ours")
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    assert model[0].weight.grad is None
    assert written.failures
    assert all(isinstance(error, ZeroDivisionError) for error in written.failures)


def test_nobody_elses_wrapper_is_thrown_away(written):
    ours = torch.autograd.graph._engine_run_backward
    seen = []

    def theirs(*args, **kwargs):
        seen.append("called")
        return ours(*args, **kwargs)

    torch.autograd._engine_run_backward = theirs
    try:
        hooks.uninstall()
        network()(torch.ones(2, 4)).sum().backward()
        torch.autograd.backward(network()(torch.ones(2, 4)).sum())
        assert torch.autograd._engine_run_backward is theirs
        assert seen
        assert written.lines == []
    finally:
        torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward


def test_every_binding_that_was_wrapped_is_put_back():
    places = [
        (torch.autograd.graph, "_engine_run_backward"),
        (torch.autograd, "_engine_run_backward"),
        (torch.utils.checkpoint, "_recomputation_hook"),
        (torch.utils.checkpoint.CheckpointFunction, "backward"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.nn.Module, "zero_grad"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
        (torch.amp.GradScaler, "step"),
    ]
    before = [vars(home)[name] for home, name in places]

    hooks.install(Written())
    during = [vars(home)[name] for home, name in places]
    hooks.uninstall()

    assert [vars(home)[name] for home, name in places] == before
    assert not set(before) & set(during)
