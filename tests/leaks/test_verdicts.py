"""What is called a leak, and what is not: by programs whose truth is known, and by their files."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramscope
from vramscope import loading
from vramscope.analysis.leaks import findings, leaks
from vramscope.analysis.verdicts import memory_growth
from vramscope.capture.holders.growth_watch import Watch
from vramscope.capture.holders.statement import carried
from vramscope.model.codes import LeakCause
from vramscope.model.marks import Labels, Marks, Phases, Steps
from vramscope.model.recording import Outcome
from vramscope.recorder.notifiers.leaks import CheckLimits, LeakNotifier

N_LAYERS = 24


class Layered(nn.Module):
    """Equal layers, recomputed in backward or not."""

    def __init__(self, recomputes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(N_LAYERS))
        self.recomputes = recomputes

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return x


def one_step(recomputes):
    """One step of AdamW, an optimizer for each parameter, stepped as soon as its gradient is there."""
    model = Layered(recomputes)
    optimizers = {each: torch.optim.AdamW([each], foreach=False) for each in model.parameters()}
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    model(torch.randn(512, 256)).square().mean().backward()
    return optimizers


def recorded(path, program):
    with vramscope.record(path, device="simulated", quiet=True):
        kept = program()
    del kept
    (found,) = vramscope.load(path).recordings
    return found


def as_file(recording):
    """The recording without marks, steps and phases, which a snapshot does not have."""
    nothing = {"steps": Steps.of(), "phases": Phases.of(), "marks": Marks.of(), "labels": Labels.of()}
    return replace(recording, source="snapshot", **nothing)


@pytest.mark.parametrize("recomputes", [False, True])
def test_layers_of_one_step_are_no_steps_and_none_of_them_leaks(tmp_path, recomputes):
    recording = recorded(tmp_path / "run", lambda: one_step(recomputes))

    assert len(recording.steps) == 1
    assert findings(recording.leaks()) == []
    assert findings(as_file(recording).leaks()) == []


def failing_step(path, layers):
    """A first forward that fails, as by an OutOfMemoryError; returns the recording until then."""
    with vramscope.record(path, device="simulated", quiet=True):
        h, outs = torch.randn(512, 64), []
        for layer in layers:
            h = torch.relu(layer(h))
            outs.append(h)
        (meanwhile,) = vramscope.load(path).recordings
        raise MemoryError(meanwhile, outs)


@pytest.mark.parametrize("is_cell", [False, True])
def test_layers_that_the_program_calls_itself_are_no_steps_before_their_backward(tmp_path, is_cell):
    """Each call keeps what backward needs, and its graph hangs on that of the call before."""
    layers = [nn.Linear(64, 64)] * 24 if is_cell else [nn.Linear(64, 64) for _ in range(24)]
    with pytest.raises(MemoryError) as caught:
        failing_step(tmp_path / "run", layers)
    meanwhile, (failed,) = caught.value.args[0], vramscope.load(tmp_path / "run").recordings

    assert [findings(each.leaks()) for each in (meanwhile, failed)] == [[], []]
    assert leaks(replace(failed, outcome=Outcome.FINISHED)).leaks  # so there is something to mistake


def failing_inference(path):
    kept, model = [], nn.Linear(64, 64)
    with vramscope.record(path, device="simulated", quiet=True):
        for _ in range(24):
            batch = torch.randn(512, 64)
            kept.append(model(batch))
        raise MemoryError


def test_an_inference_that_fails_and_keeps_its_results_leaks(tmp_path):
    """Without torch.no_grad() its forwards look like those of training; each has an input of its own."""
    with pytest.raises(MemoryError):
        failing_inference(tmp_path / "run")
    (recording,) = vramscope.load(tmp_path / "run").recordings

    (leak,) = recording.leaks().leaks
    assert leak.bytes_per_step == 2 * 512 * 64 * 4
    assert leak.cause is LeakCause.KEPT_OUTPUT


COMPREHENSION = """
import sys

import torch

import vramscope

model = torch.nn.Linear(64, 64)
with vramscope.record(sys.argv[1], device="simulated", quiet=True), torch.no_grad():
    torch.stack([model(torch.randn(512, 64)) for _ in range(24)]).sum()
"""


def test_the_results_of_one_list_comprehension_are_no_leak_of_steps(tmp_path):
    """No name leads to the list while it is made, and it is gone with the sum.

    In a process with thousands of modules the search for names ends before it has seen all of them.
    """
    (tmp_path / "program.py").write_text(COMPREHENSION)
    subprocess.run([sys.executable, tmp_path / "program.py", tmp_path / "run"], check=True, timeout=120)
    (recording,) = vramscope.load(tmp_path / "run").recordings

    for outcome in (Outcome.FINISHED, Outcome.RUNNING):
        found = replace(recording, outcome=outcome).leaks()
        assert (found.leaks, len(found.iteration_boundaries)) == ((), 0)


def test_annotations_of_many_optimizers_in_one_step_are_no_steps(tmp_path):
    """A file has the annotation of each optimizer, but none of backward."""
    recording = recorded(tmp_path / "run", lambda: one_step(recomputes=False))
    marks = recording.marks
    # What a file has: the optimizers' begins and ends.
    of_optimizers = marks.rows(np.isin(marks.kind, (0, 1)) & (marks.phase == 3))
    ends = np.sort(of_optimizers.event[of_optimizers.kind == 1])
    steps = Steps.of(
        index=range(len(ends)), start_event=np.r_[0, ends[:-1]], end_event=ends, start_ns=ends, end_ns=ends
    )

    assert len(ends) == 2 * N_LAYERS
    assert findings(replace(as_file(recording), marks=of_optimizers, steps=steps).leaks()) == []


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "vramscope", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.xdist_group("leaks")
@pytest.mark.parametrize("name", ["field/batch_doubled_in_one_line", "field/batch_larger_later"])
def test_a_growing_batch_fails_no_check_for_leaks(recorded_corpus, name):
    found = command("leaks", recorded_corpus[name], "--fail-on-leak", "--json")
    (reported,) = json.loads(found.stdout)["findings"]

    assert found.returncode == 0
    assert reported["kind"] == "growing_batch"


def test_a_leak_beside_a_growing_batch_is_still_a_leak(tmp_path):
    def growth_by_kind(path, keeps):
        def program():
            model, kept = nn.Linear(128, 128), []
            for step in range(12):
                batch = torch.randn(64 * (step + 1), 128)
                model(batch).square().mean().backward()
                model.zero_grad()
                if keeps:
                    kept.append(torch.zeros(256, 128))
            return kept

        found = findings(recorded(path, program).leaks())
        return {each.kind: each.bytes_per_step for each in found}

    both, alone = (
        growth_by_kind(tmp_path / "both", keeps=True),
        growth_by_kind(tmp_path / "alone", keeps=False),
    )

    # What the leak keeps is in each later peak, but it is not the batch that needs it.
    assert both == {"leak": 256 * 128 * 4, "growing_batch": alone["growing_batch"]}


@pytest.mark.xdist_group("leaks")
def test_the_terminal_has_every_note_of_the_recording(recorded_corpus, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(recorded_corpus["leaking/outputs_list"], run)
    (events,) = run.glob("rank0/events-0.arrows")
    events.write_bytes(events.read_bytes()[:-64])
    (recording,) = vramscope.load(run).recordings
    said = " ".join(command("leaks", run).stdout.split())

    assert recording.notes
    assert all(note.text in said for note in recording.notes)


def test_a_loss_kept_in_each_step_is_no_leak_but_is_named_with_its_list(tmp_path):
    run, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(KEEPS_LOSSES)
    command("run", "--device", "simulated", "--output", run, script)
    found = command("leaks", run, "--fail-on-leak")
    said = " ".join(found.stdout.split())

    assert found.returncode == 0
    assert "512 B a step" in said
    assert f"{script}:9" in said
    assert "kept by losses" in said


KEEPS_LOSSES = """
import torch
from torch import nn

model, losses = nn.Linear(64, 64), []
optimizer = torch.optim.SGD(model.parameters())
for _ in range(10):
    out = model(torch.randn(8, 64))
    loss = out.square().mean()
    loss.backward()
    losses.append(loss)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_without_steps_the_text_says_how_to_get_them(tmp_path):
    def program():
        return [torch.zeros(1000) for _ in range(20)]

    recorded(tmp_path / "run", program)
    said = command("leaks", tmp_path / "run").stdout

    assert "no steps are known" in said
    assert "vramscope run" in said


@pytest.mark.parametrize(
    ("n_steps", "width", "words"),
    [(24, 1024, "memory rose 4 times"), (52, 200, "nothing grows by much: 10.0 KiB a step")],
)
def test_memory_that_rose_with_a_few_evaluations_is_not_called_steady(tmp_path, n_steps, width, words):
    def program():
        model, kept = nn.Linear(64, 64), []
        for step in range(n_steps):
            if step % 5 == 0:
                kept.append(torch.zeros(64, width))
            model(torch.randn(8, 64)).sum().backward()
        return kept

    recorded(tmp_path / "run", program)
    said = " ".join(command("leaks", tmp_path / "run").stdout.split())

    assert words in said


class Looks(Watch):
    """Notes when it would have looked for holders."""

    at = ()

    def explain(self, *_):
        self.at = (*self.at, self._n_ticks)


@pytest.mark.parametrize("every", [1, 10, 100])
def test_holders_are_looked_for_when_memory_rose_six_times_at_even_distances(every):
    level = iter((step // every) << 20 for step in range(10**6))
    watch = Looks(level.__next__, lambda *_: True)
    for _ in range(8 * every):
        watch.tick("optimizer", 1, None)

    assert watch.at
    assert watch.at[0] <= 6 * every + 1


def test_a_level_that_only_varies_is_not_looked_at():
    rng = np.random.default_rng(0)
    watch = Looks(lambda: int(rng.integers(1 << 30)), lambda *_: True)
    for _ in range(300):
        watch.tick("optimizer", 1, None)

    # Of random levels the lowest of 16 rises twice now and then: that is looked at, as ever.
    assert all(tick % 16 == 0 for tick in watch.at)


@pytest.mark.xdist_group("leaks")
def test_what_an_unremoved_hook_collects_is_printed_within_20_steps(recorded_corpus):
    (reported,) = LeakNotifier().check(recorded_corpus["field/leak_activation_probe"], 1)

    assert "a hook puts tensors into activations" in reported.sentence


@pytest.mark.xdist_group("leaks")
def test_what_may_be_a_buffer_is_printed_at_the_end(recorded_corpus):
    directory, notifier = recorded_corpus["leaking/outputs_list"], LeakNotifier()

    assert notifier.check(directory, 1, is_end=True) == []
    (reported,) = notifier.rest(directory)
    assert "keeps tensors of every step" in reported.sentence
    assert notifier.rest(directory) == [], "it is said once"


@pytest.mark.xdist_group("leaks")
def test_a_long_trace_is_analyzed_by_another_process_with_the_same_sentences(recorded_corpus, monkeypatch):
    directory = recorded_corpus["field/leak_activation_probe"]
    in_thread = LeakNotifier().check(directory, 1)
    notifier = LeakNotifier(CheckLimits(in_thread_bytes=0))
    # The analysis of this process is out of reach from here on.
    monkeypatch.setattr(loading, "load", None)

    found, deadline = notifier.check(directory, 1), time.monotonic() + 120
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = notifier.check(directory, 1)

    assert found == in_thread


@pytest.mark.xdist_group("leaks")
def test_a_trace_without_new_events_is_not_analyzed_again(recorded_corpus, monkeypatch):
    directory = recorded_corpus["clean/accumulation"]
    reads = []
    real = loading.load
    monkeypatch.setattr(loading, "load", lambda path: reads.append(path) or real(path))
    notifier = LeakNotifier()
    for n_walks in range(1, 6):
        assert notifier.check(directory, n_walks, is_end=True) == []

    assert len(reads) == 1


@pytest.mark.xdist_group("leaks")
def test_the_end_of_a_training_reports_a_leak_soon_after_a_check_without_one(recorded_corpus, tmp_path):
    run, leaking = tmp_path / "run", recorded_corpus["field/leak_activation_probe"]
    shutil.copytree(recorded_corpus["clean/accumulation"], run)
    # A pause of 20 times the first check's time begins here; the training is over before it has passed.
    notifier, impatient = LeakNotifier(), LeakNotifier(CheckLimits(early_s=0.0))
    assert notifier.check(run, 1) == impatient.check(run, 1) == []
    shutil.rmtree(run)
    shutil.copytree(leaking, run)

    assert notifier.check(run, 2) == []
    assert impatient.check(run, 2, is_end=True) == []
    (reported,) = notifier.check(run, 2, is_end=True)
    assert "a hook puts tensors into activations" in reported.sentence


@pytest.mark.skipif(sys.platform != "linux", reason="reads the children of a thread from /proc")
@pytest.mark.xdist_group("leaks")
def test_an_analysis_without_end_is_ended(recorded_corpus):
    directory = recorded_corpus["field/leak_activation_probe"]
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()

    assert LeakNotifier(CheckLimits(in_thread_bytes=0, process_s=0.0)).check(directory, 1) == []
    assert children.read_text() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads the children of a thread from /proc")
@pytest.mark.xdist_group("leaks")
def test_the_end_of_a_training_does_not_wait_for_a_search_that_gets_no_cpu_time(recorded_corpus):
    directory = recorded_corpus["field/leak_activation_probe"]
    notifier = LeakNotifier(CheckLimits(in_thread_bytes=0))
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = set(children.read_text().split())
    assert notifier.check(directory, 1) == []
    (starved,) = set(children.read_text().split()) - before
    os.kill(int(starved), signal.SIGSTOP)

    (reported,) = notifier.check(directory, 1, is_end=True)

    assert "a hook puts tensors into activations" in reported.sentence
    assert starved not in children.read_text().split()


def test_a_variable_that_a_loop_reads_before_it_assigns_it_is_carried(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        "def train(model, batches, hidden):\n"
        "    total = 0\n"
        "    for batch in batches:\n"
        "        output, hidden = model(batch, hidden)\n"
        "        loss = output.sum()\n"
        "        total += loss\n"
        "def other():\n"
        "    while True:\n"
        "        hidden = 1\n"
        "        print(hidden)\n"
    )

    assert carried(str(file), "train") == {"hidden", "total"}
    assert carried(str(file), "other") == set()


@pytest.mark.parametrize(("maxsize", "kinds"), [(64, ["filling_buffer"]), (None, ["leak"])])
def test_a_bounded_lru_cache_that_fills_is_no_leak(tmp_path, maxsize, kinds):
    @lru_cache(maxsize=maxsize)
    def mask(seed):
        return torch.full((64, 64), float(seed))

    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for step in range(30):
            (weight * mask(step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings
    found = findings(leaks(recording))

    assert [each.kind for each in found] == kinds
    assert maxsize is None or "lru_cache(maxsize=64)), with 1.00 MiB then" in found[0].claim


class Replay:
    """A list that replaces its items when it has *most* of them, as of the images of a GAN."""

    def __init__(self, most):
        self.most = most
        self.items = []

    def push(self, item):
        if len(self.items) < self.most:
            self.items.append(item)
        else:
            self.items[random.randrange(self.most)] = item


@pytest.mark.parametrize("side", [56, 16])
def test_buffers_that_fill_by_little_each_are_named_where_nothing_else_grows(tmp_path, side):
    """Two of them, by 12.25 KiB a step and item: no leak, and nobody may say that nothing grows."""
    weight = torch.nn.Parameter(torch.zeros(side, side))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    first, second = Replay(50), Replay(50)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for step in range(36):
            first.push(torch.full((side, side), float(step)))
            second.push(torch.full((side, side), float(step)))
            (weight * 2).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings
    found = leaks(recording)
    growth = memory_growth(recording, found, ())

    told = [each.kind for each in findings(found)]
    assert told == (["filling_buffer"] * 2 if side == 56 else [])
    assert growth.text != "nothing grows from step to step"
    assert ("first.items" in growth.text) or ("second.items" in growth.text)


def test_what_is_sampled_from_a_bounded_buffer_does_not_keep_its_items(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    memory, state = deque(maxlen=1000), torch.zeros(64, 64)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for step in range(60):
            following = torch.full((64, 64), float(step))
            memory.append((state, following))  # an item shares a tensor with the next one
            state = following
            states, targets = zip(*random.Random(step).choices(memory, k=6), strict=True)
            (weight * states[0] - targets[0]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    (recording,) = vramscope.load(tmp_path).recordings
    (found,) = findings(leaks(recording))

    assert found.kind == "filling_buffer"
    assert "(deque(maxlen=1000)), with 15.6 MiB then" in found.claim  # 1,000 blocks of 16 KiB


def test_what_a_line_makes_beside_the_items_is_none_of_a_buffer_when_it_is_full(tmp_path):
    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    window = deque(maxlen=60)
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        for _ in range(25):
            parts = [weight * 2 for _ in range(3)]
            window.extend((parts[0].detach(), parts[1].detach()))  # the third is dropped
            sum(parts).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del parts
    (recording,) = vramscope.load(tmp_path).recordings
    (found,) = findings(leaks(recording))

    assert found.kind == "filling_buffer"
    assert "(deque(maxlen=60)), with 960 KiB then" in found.claim  # 60 blocks of 16 KiB


def test_the_history_of_lbfgs_fills_to_its_own_bound(tmp_path):
    def recorded(n_steps):
        values = torch.linspace(0, 4, 1 << 13).requires_grad_()
        optimizer = torch.optim.LBFGS([values], lr=0.01, max_iter=1, history_size=40)

        def closure():
            optimizer.zero_grad()
            loss = (values.sin() + values.square()).square().sum()
            loss.backward()
            return loss

        with vramscope.record(tmp_path / str(n_steps), device="simulated", quiet=True):
            for _ in range(n_steps):
                optimizer.step(closure)
        (recording,) = vramscope.load(tmp_path / str(n_steps)).recordings
        return recording

    (filling,) = findings(leaks(recorded(24)))
    full = recorded(60)
    level = full.timeline().allocated_bytes[full.steps.end_event]

    assert filling.kind == "filling_buffer"
    assert "at 40 items (LBFGS(history_size=40)), with 2.54 MiB then" in filling.claim
    assert level[-1] - level[0] == pytest.approx(2.54 * (1 << 20), rel=0.02)
    assert findings(leaks(full)) == []
