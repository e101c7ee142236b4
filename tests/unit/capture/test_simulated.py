"""The simulated device holds exactly what the program's tensors hold, at every moment it was asked."""

import gc
import io
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from vramscope.model.marks import MarkKind
from vramscope.model.snapshot import BlockState
from vramscope.model.trace import Action

PLAIN = (torch.Tensor, nn.Parameter)


def bytes_in_use():
    """Bytes of every storage that Python can reach, by another way than the recorder's."""
    found = {}
    for thing in gc.get_objects():
        if type(thing) in PLAIN:
            grad = thing.grad if thing.is_leaf else None
            for tensor in [thing] if grad is None else [thing, grad]:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def checked(recording):
    """Marks of the instants that ``recording.capture.mark`` was called for."""
    marks = recording.sink.marks
    return marks.event[marks.kind == MarkKind.MARK].tolist()


@pytest.fixture
def two_threads():
    """Operators use two threads here; everywhere else in the tests they use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_requested_bytes_equal_the_living_storages_after_every_step(program, recorded):
    expected = []

    def after_step():
        expected.append(bytes_in_use())
        recording.capture.mark(MarkKind.MARK)

    with recorded() as recording:
        program(4, after_step)

    assert [recording.requested_at(instant) for instant in checked(recording)] == expected


def test_the_initial_state_holds_what_was_there_before(recorded):
    model = nn.Linear(100, 100)
    model(torch.ones(1, 100)).sum().backward()
    expected = bytes_in_use()

    with recorded() as recording:
        pass

    initial = recording.sink.initial
    assert int(initial.blocks.requested_size.sum()) == expected
    assert len(recording.sink.trace) == 0


@pytest.mark.parametrize(
    "held_by",
    [
        "a local variable",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("a module", "an object younger than the freeze")
        ),
    ],
)
def test_tensors_that_the_program_froze_are_in_the_initial_state(held_by, recorded, monkeypatch, freezing):
    held = [torch.zeros(797)]
    freezing()
    if held_by != "a local variable":
        owner = types.ModuleType("owner") if held_by == "a module" else Owner()
        owner.held, held = held, None
        monkeypatch.setitem(sys.modules, "owner", owner)
    with recorded() as recording:
        pass

    assert 797 * 4 in recording.sink.initial.blocks.requested_size.tolist()
    assert gc.get_freeze_count()


class Owner:
    """An object of the program."""


def test_the_state_at_the_end_is_the_traces(program, recorded):
    with recorded() as recording:
        program(2)
        kept = torch.ones(1000)

    state, reported = recording.sink.states[-1]
    used = state.blocks.state == BlockState.ALLOCATED
    assert reported
    assert state.event == len(recording.sink.trace)
    assert int(state.blocks.requested_size[used].sum()) == recording.requested_at(state.event)
    assert kept.numel() == 1000


def test_a_view_is_no_allocation(recorded):
    base = torch.ones(64, 64)
    with recorded() as recording:
        views = [base.t(), base[1:], base.view(-1), base.detach(), base.reshape(16, 256)]

    assert len(views) == 5
    assert len(recording.sink.trace) == 0


def test_a_storage_lives_as_long_as_its_last_view(recorded):
    with recorded() as recording:
        tensor = torch.ones(256)
        view = tensor[1:2]
        del tensor
        recording.capture.mark(MarkKind.MARK)
        del view
        recording.capture.mark(MarkKind.MARK)

    held, freed = checked(recording)
    assert recording.requested_at(held) - recording.requested_at(freed) == 1024


def test_a_resized_storage_is_another_block(recorded):
    with recorded() as recording:
        tensor = torch.ones(256)
        storage = tensor.untyped_storage()
        storage.resize_(0)
        recording.capture.mark(MarkKind.MARK)
        storage.resize_(4096)
        recording.capture.mark(MarkKind.MARK)
        tensor.resize_(2048)
        recording.capture.mark(MarkKind.MARK)

    start = recording.requested_at(0)
    assert [recording.requested_at(k) - start for k in checked(recording)] == [0, 4096, 8192]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([1.0] * 256),
        lambda: torch.from_numpy(np.ones(256, dtype="f4")),
        lambda: torch.ones(256).share_memory_(),
        lambda: torch.load(saved()),
        lambda: torch.ones(16, 16).to_sparse(),
        lambda: nn.Embedding(16, 4, sparse=True)(torch.arange(16)).sum(),
    ],
    ids=["tensor", "numpy", "shared", "loaded", "sparse", "sparse gradient"],
)
def test_tensors_of_other_makes_are_seen_and_freed(make, recorded):
    make()
    with recorded() as recording:
        made = make()
        recording.capture.mark(MarkKind.MARK)
        del made
        gc.collect()

    trace = recording.sink.trace
    assert (trace.action == Action.ALLOC).any()
    assert recording.requested_at(len(trace)) == recording.requested_at(0)


def saved():
    file = io.BytesIO()
    torch.save(torch.ones(256), file)
    file.seek(0)
    return file


def test_inference_mode_shows_the_temporaries_of_composite_operators(recorded):
    model, x = nn.MultiheadAttention(16, 2, batch_first=True).train(), torch.ones(2, 8, 16)
    counts = []
    for mode in (torch.no_grad, torch.inference_mode):
        with recorded() as recording, mode():
            model(x, x, x, need_weights=False)
        counts.append(int((recording.sink.trace.action == Action.ALLOC).sum()))

    assert counts[1] == counts[0] > 3


def test_every_allocation_knows_the_line_that_asked(recorded):
    with recorded() as recording:
        kept = ask_for_memory()

    stacks = recording.sink.builder.build()
    frames = stacks.frames(int(recording.sink.trace.stack_id[-1]))
    assert kept.numel() == 10
    assert frames[0].function == "ask_for_memory"
    assert frames[1].function == "test_every_allocation_knows_the_line_that_asked"


def ask_for_memory():
    return torch.ones(10)


class Samples(torch.utils.data.Dataset):
    """Makes each sample from a larger tensor, and keeps the first as a cache would."""

    def __init__(self):
        self.kept = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        sample = torch.ones(5000)[:100] * index
        if index == 0:
            self.kept.append(sample)
        return sample


def test_of_a_data_loaders_work_only_what_it_keeps_is_on_the_device(recorded):
    samples = Samples()
    loader = torch.utils.data.DataLoader(samples, batch_size=4)
    with recorded() as recording:
        batches = [batch * 2 for batch in loader]

    trace = recording.sink.trace
    made = trace.action == Action.ALLOC
    stacks = recording.sink.builder.build()
    lines = [stacks.frames(stack)[0].function for stack in trace.stack_id[made].tolist()]
    # The seed of the loader's iterator, then what its samples' cache keeps, then batches and results.
    assert trace.size[made].tolist() == [8, 400, *[1600, 1600] * len(batches)]
    assert lines[1] == "__getitem__"


def test_backward_knows_the_line_that_called_it(recorded):
    weight = torch.ones(10, requires_grad=True)
    with recorded() as recording:
        weight.exp().sum().backward()

    stacks = recording.sink.builder.build()
    last = recording.sink.trace.stack_id[recording.sink.trace.action == Action.ALLOC][-1]
    functions = [frame.function for frame in stacks.frames(int(last))]
    assert functions[:3] == ["_engine_run_backward", "backward", "backward"]
    assert functions[3] == "test_backward_knows_the_line_that_called_it"


def test_stacks_are_cut_to_the_depth_asked_for(recorded):
    with recorded(stack_depth=2) as recording:
        kept = ask_for_memory()

    stacks = recording.sink.builder.build()
    assert kept.numel() == 10
    assert len(stacks.frames(int(recording.sink.trace.stack_id[-1]))) == 2


def test_a_full_device_is_marked_and_the_program_goes_on(recorded):
    with recorded(capacity_bytes=64 << 20) as recording:
        kept = [torch.empty(16 << 20, dtype=torch.uint8) for _ in range(6)]

    assert len(kept) == 6
    assert (recording.sink.marks.kind == MarkKind.OOM).sum() == 1
    assert [note.code for note in recording.sink.notes] == ["simulated_oom"]
    assert recording.requested_at(len(recording.sink.trace)) - recording.requested_at(0) == 6 << 24


def test_tensors_die_on_other_threads_too(recorded):
    with recorded() as recording:
        box = [torch.ones(256)]
        thread = threading.Thread(target=box.clear, daemon=True)
        thread.start()
        thread.join()
        recording.capture.mark(MarkKind.MARK)

    assert recording.requested_at(checked(recording)[0]) == recording.requested_at(0)


def test_a_cycle_dies_when_the_collector_finds_it(recorded):
    gc.collect()
    gc.disable()
    try:
        with recorded() as recording:
            tensor = torch.ones(256)
            tensor.itself = [tensor]
            del tensor
            recording.capture.mark(MarkKind.MARK)
            gc.collect()
            recording.capture.mark(MarkKind.MARK)
    finally:
        gc.enable()

    held, freed = checked(recording)
    assert recording.requested_at(held) - recording.requested_at(freed) == 1024
    assert (recording.sink.marks.kind == MarkKind.GC).any()


@contextmanager
def _recursion_limit(limit: int) -> Iterator[None]:
    """Some packages raise the limit for good, torch's compiler to 2,000; this test takes its square."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def test_a_program_near_the_recursion_limit_goes_on_and_the_recording_too(recorded):
    def deep(n):
        """Recurse as deep as Python allows, with an operator at every depth."""
        made = torch.ones(8)
        return deep(n + 1) if n < 10**6 else made

    with recorded() as recording:
        with pytest.raises(RecursionError), _recursion_limit(1000):
            deep(0)
        recording.capture.mark(MarkKind.MARK)
        kept = torch.ones(256)
        notes = recording.capture.notes()

    assert recording.failures == []
    assert kept.numel() == 256
    assert recording.sink.trace.size[-1] == 1024
    assert {note.code for note in notes} <= {"recursion_limit"}


def test_time_never_runs_backwards(program, recorded):
    with recorded() as recording:
        program(2)

    assert (np.diff(recording.sink.trace.time_ns) >= 0).all()
    assert (np.diff(recording.sink.marks.event) >= 0).all()
