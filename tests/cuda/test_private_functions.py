"""Private functions of torch that are other ones: training runs on, and the recording says what it lacks."""

import json

import pytest
from standin_fixtures import AFTER, BEFORE

from vramscope.loading import load

pytestmark = pytest.mark.standin

PROGRAM = """
import sys, types
C, memory = torch._C, torch.cuda.memory
history, snapshot, statistics = C._cuda_record_memory_history, C._cuda_memorySnapshot, C._cuda_memoryStats
N = len(history.__doc__.partition(") ->")[0].split("arg")) - 1
NAMES = ["enabled", "context", "stacks", "max_entries", "clear_history", "compile_context",
         "global_record_annotations", "skip_actions", "record_pinned_host_memory", "record_cuda"][:N]
USUAL = dict(context="all", stacks="all", clear_history=False, compile_context=False,
             global_record_annotations=False, skip_actions=[], record_pinned_host_memory=False,
             record_cuda=True)

def original(**named):
    return history(*[{**USUAL, **named}[name] for name in NAMES])

def torch_calls(body, *names):
    # torch's own Python function, of the version whose C function is the changed one.
    code = f"def _record_memory_history_impl({', '.join(names)}): {body}"
    exec(code, memory.__dict__)

def taking(*names):
    return eval(f"lambda {', '.join(names)}: history({', '.join(NAMES)})", globals())

def fails(*_):
    raise TypeError("incompatible function arguments")

def change(way):
    if way == "required_that_torch_passes":
        C._cuda_record_memory_history = lambda lane, *rest: history(*rest) if lane == 7 else fails()
        torch_calls(f"_C._cuda_record_memory_history(7, {', '.join(NAMES)})",
                    "enabled='all'", *(f"{name}={USUAL.get(name)!r}" for name in NAMES[1:]))
    elif way == "required_that_nobody_knows":
        C._cuda_record_memory_history = taking(*NAMES, "lane")
    elif way == "optional":
        C._cuda_record_memory_history = taking(*NAMES, "lane=3")
    elif way == "removed":
        def changed(enabled, context, max_entries):
            assert context is None, "torch would take stacks of C++"
            return original(enabled=enabled, context=context, max_entries=max_entries, clear_history=True)
        C._cuda_record_memory_history = changed
    elif way == "renamed":
        def changed(enabled, context, stacks, most):
            return original(enabled=enabled, context=context, stacks=stacks, max_entries=most)
        C._cuda_record_memory_history = changed
        torch_calls("_C._cuda_record_memory_history(enabled, context, stacks, most)",
                    "enabled='all'", "context='all'", "stacks='all'", "most=1 << 60")
    elif way == "reordered":
        def changed(max_entries, stacks, enabled, context):
            return original(enabled=enabled, context=context, stacks=stacks, max_entries=max_entries)
        C._cuda_record_memory_history = changed
    elif way == "missing":
        del C._cuda_record_memory_history
    elif way == "type_error":
        C._cuda_record_memory_history = fails
    elif way == "does_nothing":
        C._cuda_record_memory_history = lambda *_: None
    elif way == "snapshot_of_another_type":
        C._cuda_memorySnapshot = lambda *_: [snapshot(*_)]
    elif way == "snapshot_missing":
        del C._cuda_memorySnapshot
    elif way == "statistics_of_another_type":
        C._cuda_memoryStats = lambda device: list(statistics(device))
    elif way == "statistics_with_another_argument":
        C._cuda_memoryStats = lambda device, kind: statistics(device)
    elif way == "lesser_ones":
        C._cuda_hostMemoryStats = fails
        C._cuda_attach_out_of_memory_observer = fails
        C._cuda_getMemoryFraction = lambda device: "all"
        del C._cuda_isHistoryEnabled, C._cuda_emptyCache

from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters())

def losses():
    found = []
    for _ in range(6):
        loss = model(torch.randn(64, 512, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found

if sys.argv[2] == "plain":
    answer = losses(), 0
else:
    import vramscope
    change(sys.argv[2])
    with vramscope.record(sys.argv[1]) as recorder:
        found = losses()
    del C, memory
    answer = found, recorder.has_failed
"""

HISTORY, SNAPSHOT, STATISTICS = "_cuda_record_memory_history", "_cuda_memorySnapshot", "_cuda_memoryStats"
NO_EVENTS = "Missing: events and call stacks"
WAYS = {
    "required_that_torch_passes": ("cuda", []),
    "required_that_nobody_knows": ("counters", [f"{HISTORY} takes other arguments", NO_EVENTS]),
    "optional": ("cuda", [f"{HISTORY} takes other arguments", "lane", "Nothing that is known is missing"]),
    "removed": ("cuda", [f"{HISTORY} takes other arguments", "Missing: ", "call stacks"]),
    "renamed": ("counters", [f"{HISTORY} takes other arguments", "most", NO_EVENTS]),
    "reordered": ("cuda", [f"{HISTORY} takes other arguments"]),
    "missing": ("counters", [f"{HISTORY} is missing", NO_EVENTS]),
    "type_error": ("counters", [f"{HISTORY} failed (TypeError: incompatible function arguments)", NO_EVENTS]),
    "does_nothing": ("counters", [f"{HISTORY} did not switch the history on", NO_EVENTS]),
    "snapshot_of_another_type": ("counters", [f"{SNAPSHOT} returned list", NO_EVENTS]),
    "snapshot_missing": ("counters", [f"{SNAPSHOT} is missing", NO_EVENTS]),
    "statistics_of_another_type": ("counters", [f"{STATISTICS} ", NO_EVENTS]),
    "statistics_with_another_argument": ("counters", [f"{STATISTICS} takes other arguments", NO_EVENTS]),
    "lesser_ones": (
        "cuda",
        [
            "_cuda_attach_out_of_memory_observer failed",
            "_cuda_isHistoryEnabled is missing",
            "_cuda_emptyCache is missing. Missing: who calls empty_cache()",
        ],
    ),
}


@pytest.fixture(scope="module")
def outcome_of(python, tmp_path_factory):
    """``outcome_of("renamed")``: the losses, what was printed, and what was recorded."""
    folder = tmp_path_factory.mktemp("private")

    def outcome(way):
        script = folder / f"{way}.py"
        script.write_text(BEFORE + PROGRAM + AFTER.format(path=str(folder / f"{way}.json")))
        done = python(script, folder / way, way, cwd=folder)
        assert done.returncode == 0, done.stderr
        losses, has_failed = json.loads((folder / f"{way}.json").read_text())
        assert not has_failed
        return losses, done.stderr, None if way == "plain" else load(folder / way).recordings[0]

    return outcome


@pytest.fixture(scope="module")
def plain_losses(outcome_of):
    return outcome_of("plain")[0]


@pytest.mark.parametrize("way", WAYS)
def test_another_signature_costs_what_it_serves_and_the_recording_says_so(way, outcome_of, plain_losses):
    source, words = WAYS[way]

    losses, printed, recording = outcome_of(way)

    assert losses == plain_losses
    assert recording.source == source
    assert (len(recording.trace) > 0) == (source == "cuda")
    said = [note.text for note in recording.notes if note.code == "private_function"]
    assert all(any(word in text for text in said) for word in words), said
    assert bool(said) == bool(words)
    is_felt = any("Missing: " in text for text in said)
    lines = [line for line in printed.splitlines() if "torch " in line]
    assert len(lines) == is_felt, printed
    assert len(recording.steps) == 6


def test_without_events_the_first_note_says_why(outcome_of):
    _, _, recording = outcome_of("missing")

    assert next(note.code for note in recording.notes) in ("private_function", "no_history")
    assert any("no events" in note.text for note in recording.notes)
