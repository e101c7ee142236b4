"""``record()`` writes what happened and changes nothing: not the losses, not the exceptions, not torch."""

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader, TensorDataset

import vramscope
from vramscope import recorder
from vramscope.errors import CaptureError, StoreError, UsageError
from vramscope.loading import load
from vramscope.model.marks import MarkKind, Phase
from vramscope.model.recording import Outcome

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_runs(monkeypatch, tmp_path):
    """Every test begins without a run, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert recorder.runs.active is None
    recorder.runs.by_directory.clear()


def record(*args, **options):
    return vramscope.record(*args, quiet=True, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "counters", "stack_depth": 8},
        {"mode": "counters", "capacity": "1GiB"},
        {"device": "cuda", "capacity": "1GiB"},
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, options):
    with pytest.raises(UsageError, match="leave"):
        record(tmp_path / "run", **options)


def train(n_steps=2):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(n_steps):
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def only(path):
    """The one recording of a run."""
    run = load(path)
    (found,) = run.recordings
    return found


def torch_as_it_is():
    """Every place that recording puts something into."""
    return {
        "pre": dict(modules._global_forward_pre_hooks),
        "post": dict(modules._global_forward_hooks),
        "always": dict(modules._global_forward_hooks_always_called),
        "step pre": dict(optimizers._global_optimizer_pre_hooks),
        "step post": dict(optimizers._global_optimizer_post_hooks),
        "engine": (torch.autograd.graph._engine_run_backward, torch.autograd._engine_run_backward),
        "zero_grad": torch.optim.Optimizer.zero_grad,
        "resize": torch.UntypedStorage.resize_,
        "own resize": "resize_" in vars(torch.UntypedStorage),
        "mode": _get_current_dispatch_mode(),
        "gc": list(gc.callbacks),
        "filters": list(warnings.filters),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


# ------------------------------------------------------------------------------------- no harm


def test_nothing_of_ours_stays(tmp_path):
    train()  # torch imports, and with them changes, much at the first step
    before = torch_as_it_is()
    with record(tmp_path / "run"):
        assert torch_as_it_is() != before
        train()

    assert torch_as_it_is() == before


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_nothing_of_ours_stays_after_an_exception(tmp_path, error, message):
    class Model(nn.Module):
        def forward(self, x):  # noqa: ARG002
            raise error

    before = torch_as_it_is()
    with pytest.raises(type(error)) as caught, record(tmp_path / "run"):
        Model()(torch.ones(1))

    run = load(tmp_path / "run")
    assert caught.value is error
    assert torch_as_it_is() == before
    assert run.outcome is Outcome.FAILED
    assert run.error == message


def test_a_plain_exit_is_no_failure(tmp_path):
    with pytest.raises(SystemExit), record(tmp_path / "run"):
        sys.exit(0)

    assert load(tmp_path / "run").outcome is Outcome.FINISHED


def test_a_directory_that_cannot_be_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    before = torch_as_it_is()
    recorded = record(tmp_path / "file" / "run")(train)
    with pytest.warns(RuntimeWarning, match="training goes on.*file") as caught:
        recorded()
    recorded()

    assert len(caught) == 1
    assert torch_as_it_is() == before


def test_a_full_disk_is_one_warning_and_training_goes_on(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise StoreError("no space left")

    def train_on():
        with record(tmp_path / "run") as recorder:
            monkeypatch.setattr("vramscope.store.write.writer.Writer.append", full)
            train()
            recorder._pipeline.flush()
            train()
            recorder.step()

    before = torch_as_it_is()
    with pytest.warns(RuntimeWarning, match="no space left") as caught:
        train_on()

    assert len(caught) == 1
    assert torch_as_it_is() == before


def test_our_mistake_in_a_hook_is_one_warning_and_training_goes_on(tmp_path, monkeypatch):
    def broken(*_args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("vramscope.capture.simulated.Simulated.born", broken)
    recorded = record(tmp_path / "run")(train)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: ours") as caught:
        recorded()

    run = load(tmp_path / "run")
    assert len(caught) == 1
    assert run.outcome is Outcome.FAILED
    assert "recording_failed" in [note.code for found in run.recordings for note in found.notes]


def test_a_warning_made_an_error_does_not_reach_the_training(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    warnings.simplefilter("error")
    with record(tmp_path / "file" / "run"):
        train()

    assert "training goes on" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CaptureError, match=r"pip install .vramscope\[torch\]"), record(tmp_path / "run"):
        pass


def test_importing_the_recorder_does_not_import_torch():
    code = "import sys, vramscope.recorder; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --------------------------------------------------------------------------------- ways to call


def steps_of(path):
    return len(only(path).steps)


def test_around_the_whole_loop(tmp_path):
    with record(tmp_path / "run") as recorder:
        train(3)

    assert recorder.directory == tmp_path / "run"
    assert steps_of(recorder.directory) == 3


def test_an_inner_block_continues_the_run_and_is_a_step(tmp_path):
    with record(tmp_path / "run") as outer:
        for _ in range(3):
            with record() as inner:
                train(1)

    assert inner is outer
    assert steps_of(tmp_path / "run") == 3


def test_a_block_per_step_is_one_run(tmp_path):
    for _ in range(3):
        with record() as recorder:
            train(1)

    assert recorder.directory.parent == tmp_path / "traces"
    assert [path.parent for path in (tmp_path / "traces").iterdir()] == [tmp_path / "traces"]
    assert steps_of(recorder.directory) == 3
    assert load(recorder.directory).outcome is Outcome.FINISHED


def test_what_is_made_and_freed_between_the_blocks_is_counted(tmp_path):
    kept = []
    for size in (1000, 2000, 3000):
        with record(tmp_path / "run"):
            kept.append(torch.ones(size))
        outside = torch.ones(size)
        if kept[0].numel() == 1000:
            kept[0] = outside
    with record(tmp_path / "run") as recorder:
        recorder.mark("end")

    found = only(tmp_path / "run")
    timeline = found.timeline()
    end = found.marks.event[found.marks.kind == MarkKind.MARK][-1]
    start = timeline.requested_bytes[0]
    assert timeline.requested_bytes[end] - start == 4 * (2000 + 2000 + 3000 + 3000)


def test_as_a_decorator(tmp_path):
    @record(tmp_path / "run")
    def step(n):
        """Documented."""
        train(1)
        return n

    assert [step(n) for n in range(3)] == [0, 1, 2]
    assert step.__name__ == "step"
    assert step.__doc__ == "Documented."
    assert steps_of(tmp_path / "run") == 3


def test_as_a_decorator_of_what_goes_on_after_the_call(tmp_path):
    @record(tmp_path / "run")
    async def coroutine(n):
        train(n)
        return n

    @record(tmp_path / "run")
    async def async_generator(n):
        train(n)
        yield n

    @record(tmp_path / "run")
    def generator(n):
        train(n)
        yield n

    async def all_of(items):
        return [item async for item in items]

    def result(awaitable):
        # No loop of events: in the process of the browser tests one is running already.
        with pytest.raises(StopIteration) as ended:
            awaitable.send(None)
        return ended.value.value

    assert result(coroutine(1)) == 1
    assert result(all_of(async_generator(1))) == [1]
    assert list(generator(1)) == [1]
    assert steps_of(tmp_path / "run") == 3


def test_a_block_within_a_compiled_function_is_recorded(tmp_path):
    model = nn.Linear(8, 8)

    @torch.compile(backend="eager")
    def step(x):
        with record(tmp_path / "run"):
            return model(x).sum()

    with warnings.catch_warnings():
        # The compiler's, of what it found in our frames.
        warnings.filterwarnings("ignore", category=UserWarning)
        for _ in range(2):
            step(torch.ones(2, 8)).backward()

    assert steps_of(tmp_path / "run") == 2
    assert not load(tmp_path / "run").recordings[0].notes


def test_the_recorder_prints_more_when_asked(tmp_path):
    with record(tmp_path / "run") as recorder:
        for _ in range(2):
            with recorder.phase("loss"), recorder.phase("my own"):
                torch.ones(10).sum()
            recorder.mark("noted")
            recorder.step()

    found = only(tmp_path / "run")
    assert len(found.steps) == 2
    assert [found.phases.names[name] for name in found.phases.name] == ["loss", "my own"] * 2
    assert found.phases.phase.tolist() == [Phase.LOSS, Phase.USER] * 2
    assert (found.marks.kind == MarkKind.MARK).sum() == 2


def test_names_may_be_anything(tmp_path):
    with record(tmp_path / "run") as recorder:
        with recorder.phase(3):
            train(1)
        recorder.mark(7)
        recorder.mark("\ud800")
        recorder.mark(torch.ones(1))

    run = load(tmp_path / "run")
    (recording,) = run.recordings
    assert run.outcome is Outcome.FINISHED
    assert {"3", "7", "?", "Tensor"} <= set(recording.marks.names)


def test_outside_of_a_block_nothing_is_written(tmp_path):
    with record(tmp_path / "run") as recorder:
        pass
    recorder.step()
    recorder.mark("late")
    with recorder.phase("late"):
        pass

    assert not (set(only(tmp_path / "run").marks.kind.tolist()) & {MarkKind.STEP, MarkKind.MARK})


def test_an_exception_is_forgotten_when_the_run_goes_on(tmp_path):
    with pytest.raises(ValueError, match="once"), record(tmp_path / "run"):
        raise ValueError("once")
    with record(tmp_path / "run"):
        train(1)

    assert load(tmp_path / "run").outcome is Outcome.FINISHED


def test_another_processs_directory_is_left_alone(tmp_path, capsys):
    (tmp_path / "run" / "rank0").mkdir(parents=True)
    with record(tmp_path / "run") as recorder:
        train(1)

    assert recorder.directory == tmp_path / "run-2"
    assert capsys.readouterr().err.count("\n") == 1
    assert steps_of(tmp_path / "run-2") == 1
    assert list((tmp_path / "run" / "rank0").iterdir()) == []


def test_a_second_directory_inside_of_a_block_is_the_first(tmp_path):
    with record(tmp_path / "run") as outer, record(tmp_path / "other") as inner:
        train(1)

    assert inner is outer
    assert not (tmp_path / "other").exists()


def test_ranks_share_a_directory(tmp_path, monkeypatch):
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with record(tmp_path / "run"):
            train(1)
        recorder.runs.by_directory.clear()

    assert sorted(load(tmp_path / "run").ranks) == [0, 1]


@pytest.mark.parametrize(
    "options", [{"device": "tpu"}, {"capacity": "much"}, {"stack_depth": -1}, {"stack_depth": "all"}]
)
def test_what_cannot_be_meant_is_refused_at_once(options):
    with pytest.raises(UsageError):
        record(**options)


def test_no_gpu_and_no_tensors_is_reported(tmp_path, capsys):
    code = f"import vramscope\nwith vramscope.record({str(tmp_path / 'run')!r}):\n    pass\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "nothing was recorded" in done.stderr
    assert "nothing_seen" in [note.code for note in only(tmp_path / "run").notes]
    assert capsys.readouterr().err == ""


def test_a_program_of_fake_tensors_alone_is_led_to_predict(tmp_path, run_script):
    code = f"""
import torch, vramscope
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode(), vramscope.record({str(tmp_path / "run")!r}, device="simulated"):
    torch.nn.Linear(100, 100)(torch.ones(4, 100)).sum().backward()
"""
    done = run_script(code)

    assert done.returncode == 0, done.stderr
    (note,) = (note for note in only(tmp_path / "run").notes if note.code == "nothing_seen")
    assert "vramscope predict" in note.text


# ------------------------------------------------------------------------------ other processes


def test_data_loader_workers_are_not_recorded(tmp_path):
    data = TensorDataset(torch.arange(64.0).reshape(16, 4))
    with record(tmp_path / "run"):
        sums = [batch.sum().item() for (batch,) in DataLoader(data, batch_size=4, num_workers=2)]

    assert sums == [120.0, 376.0, 632.0, 888.0]
    assert load(tmp_path / "run").outcome is Outcome.FINISHED


def test_a_fork_in_the_middle_writes_nothing(tmp_path, run_script):
    # A process of its own: torch trains in no fork of a process whose autograd has had a device's thread.
    done = run_script(f"""
        import os, torch, vramscope
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        def train():
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters())
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()

        with vramscope.record({str(tmp_path / "run")!r}):
            train()
            child = os.fork()
            if not child:
                try:
                    train()
                    os._exit(_get_current_dispatch_mode() is None)
                finally:
                    os._exit(9)
            _, status = os.waitpid(child, 0)
            train()
        raise SystemExit(os.waitstatus_to_exitcode(status))
    """)

    phases = only(tmp_path / "run").phases
    assert done.returncode == 0, done.stderr
    assert (phases.phase == Phase.OPTIMIZER).sum() == 2


def test_a_forked_child_may_leave_the_block_and_record_its_own(tmp_path, run_script):
    script = f"""
        import os, torch, vramscope
        with vramscope.record({str(tmp_path / "run")!r}):
            torch.ones(10)
            child = os.fork()
        if not child:
            with vramscope.record({str(tmp_path / "child")!r}):
                kept = torch.ones(10)
        else:
            raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = run_script(script)

    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "run").outcome is Outcome.FINISHED
    assert len(only(tmp_path / "child").trace) > 0


@pytest.fixture
def run_script(plain_forks, tmp_path):
    """``run_script(text)``: the end and the output of a process of its own."""
    return lambda text: plain_forks.run_code(textwrap.dedent(text), cwd=tmp_path, variables={})


def test_a_killed_process_leaves_all_but_its_last_two_seconds(tmp_path, started):
    script = textwrap.dedent(f"""
        import time, torch, vramscope
        with vramscope.record({str(tmp_path / "run")!r}) as recorder:
            while True:
                kept = torch.ones(10)
                recorder.mark("alive")
                print(time.time_ns(), flush=True)
                time.sleep(0.02)
    """)
    with started([sys.executable, "-c", script]) as process:
        first = int(process.stdout.readline())
        while (last := int(process.stdout.readline())) < first + 3_000_000_000:
            pass
        process.send_signal(signal.SIGKILL)

    run = load(tmp_path / "run")
    (found,) = run.recordings
    assert run.outcome is Outcome.DIED
    assert found.trace.time_ns[-1] > last - 2_000_000_000
    assert found.marks.time_ns[-1] > last - 2_000_000_000


def test_the_interpreter_may_end_inside_of_a_block(tmp_path):
    text = textwrap.dedent(f"""
        import torch, vramscope
        vramscope.record({str(tmp_path / "run")!r}).__enter__()
        kept = torch.ones(10)
    """)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "run")
    assert run.outcome is Outcome.FINISHED
    assert len(run.recordings[0].trace) > 0


def test_two_threads_record_into_one_run(tmp_path):
    # Both live at once: the system gives the number of a thread that has ended to the next one.
    together = threading.Barrier(2, timeout=60)

    def work():
        together.wait()
        with record():
            train(1)
        together.wait()

    with record(tmp_path / "run"):
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = only(tmp_path / "run")
    assert (found.phases.phase == Phase.OPTIMIZER).sum() == 2
    assert len(set(found.phases.thread.tolist())) == 2


def test_what_is_written_is_there_before_the_block_ends(tmp_path):
    with record(tmp_path / "run"):
        kept = torch.ones(1000)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not len(only(tmp_path / "run").trace):
            time.sleep(0.1)

        assert load(tmp_path / "run").outcome is Outcome.RUNNING
        assert only(tmp_path / "run").trace.size[-1] == kept.untyped_storage().nbytes()
