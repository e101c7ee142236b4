"""The committed recordings show what was known about them without us: by hand, or by torch's counters."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import vramscope
from vramscope.cli import main
from vramscope.model.marks import Category, Phase
from vramscope.model.trace import Action
from vramscope.store import sources

SAMPLES = Path(__file__).parents[2] / "sample_traces"
NAMES = ("transformer", "gan-retain-graph", "transformer-cuda")


def sample(name):
    (recording,) = vramscope.load(SAMPLES / name).recordings
    return recording, json.loads((SAMPLES / f"{name}.expected.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_has_its_source_and_steps(name):
    recording, expected = sample(name)

    assert recording.source == expected["source"]
    assert len(recording.steps) == expected["steps"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_goes_forward_backward_and_optimizes(name):
    recording, _ = sample(name)

    for step in range(len(recording.steps)):
        phases = set(recording.phases.phase[recording.phases.step == step].tolist())
        assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= phases


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_reserved_memory_sum_to_it_at_every_instant_asked(name):
    recording, _ = sample(name)
    reserved = recording.timeline().reserved_bytes

    for instant in np.random.default_rng(0).integers(0, len(recording.trace) + 1, 20).tolist():
        parts = recording.identity(instant=instant)
        assert sum(parts.parts.values()) == reserved[instant]


def test_parameters_and_optimizer_state_of_the_transformer_are_known_to_the_byte():
    recording, expected = sample("transformer")
    allocations = recording.lifetimes()
    at_end_of_last_step = int(recording.steps.end_event[-1])
    known = recording.categories(instant=at_end_of_last_step).assigned

    def requested(category):
        is_mine = allocations.allocated_at(at_end_of_last_step) & (known.category == category)
        return int(allocations.size[is_mine].sum())

    assert requested(Category.PARAMETER) == expected["parameter_bytes_requested"]
    assert requested(Category.OPTIMIZER_STATE) == expected["optimizer_bytes_requested"]


def test_the_logits_are_the_largest_allocation_of_the_transformer():
    recording, expected = sample("transformer")

    allocated = recording.trace.size[recording.trace.action == Action.ALLOC]
    assert allocated.max() == expected["largest_activation_bytes"]


def test_the_gan_keeps_the_same_bytes_every_step():
    recording, expected = sample("gan-retain-graph")
    allocated = recording.timeline().allocated_bytes[recording.steps.end_event]

    assert set(np.diff(allocated)[1:].tolist()) == {expected["kept_bytes_per_step"]}


def test_the_cuda_sample_ends_on_torchs_own_counters():
    recording, expected = sample("transformer-cuda")
    totals = recording.timeline()

    ours = {name: int(getattr(totals, f"{name}_bytes")[-1]) for name in expected["end_bytes"]}
    assert ours == expected["end_bytes"]


def test_the_cuda_sample_peaks_where_torch_says():
    recording, expected = sample("transformer-cuda")
    totals = recording.timeline()

    ours = {name: int(getattr(totals, f"{name}_bytes").max()) for name in expected["peak_bytes"]}
    assert ours == expected["peak_bytes"]


def test_the_gan_brings_the_source_of_its_leak_to_any_machine():
    (kept,) = sources.read(SAMPLES / "gan-retain-graph" / "rank0" / "sources.json").values()
    script = (SAMPLES / "gan_retain_graph.py").read_text().splitlines()

    assert kept.lines[41].strip() == "history.append(loss_d)"
    assert all(text == script[number - 1] for number, text in kept.lines.items())


def test_what_runs_out_of_memory_is_the_perceptron_of_the_long_batch():
    """The hidden layer of 512 numbers, for 8 sequences of 192, in the one step whose batch is that long."""
    run = vramscope.load(SAMPLES / "out-of-memory")
    (recording,) = run.recordings
    failed = recording.oom()
    (finding,) = (found for found in recording.findings() if found.kind == "oom")

    assert failed.size_bytes.tolist() == [8 * 192 * 512 * 4]
    assert "out of memory at step 4 in forward" in finding.claim
    assert failed.reserved_bytes[0] == recording.device.total_bytes == 40 * 2**20


def test_the_odd_rank_of_the_fleet_holds_what_its_larger_batch_needs():
    """A row more is input, output and gradient of 256 numbers; hidden, activated and gradient of 4096."""
    fleet = vramscope.load(SAMPLES / "fleet")
    peaks = [each.peak().allocated.n_bytes for each in fleet.recordings]
    rows = 32 * 16

    assert [each.process.rank for each in fleet.recordings] == [0, 1, 2, 3]
    assert peaks[0] == peaks[1] == peaks[3]
    assert peaks[2] - peaks[0] == rows * 4 * 3 * (256 + 4096)


def test_the_predicted_sample_has_the_parameters_of_gpt_2_and_two_states_of_each():
    width, length, vocabulary = 768, 1024, 50_304
    layers = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    linear = sum(ins * outs + outs for ins, outs in layers)
    # A segment is of whole 2 MiB; what is left of the embedding's, 640 KiB, is too little to be split off.
    embedding = -(-4 * vocabulary * width // (2 << 20)) * (2 << 20)
    parameters = embedding + 4 * (length * width + 12 * (linear + 2 * 2 * width) + 2 * width)
    (recording,) = vramscope.load(SAMPLES / "predicted").recordings
    held = recording.summary().categories

    assert held["parameter"] == parameters
    # Two of each, and what the foreach loop and the steps need.
    assert 2 * parameters <= held["optimizer_state"] < 2.02 * parameters
    assert recording.prediction.fits
    assert recording.prediction.card == "RTX 4090"


@pytest.mark.parametrize("name", [*NAMES, "out-of-memory", "fleet", "predicted"])
def test_reading_a_sample_changes_no_file(name, tmp_path):
    """What readers keep beside a recording is in the samples already: no clone gets changed by reading."""
    copy = shutil.copytree(SAMPLES / name, tmp_path / name)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}

    assert main(["ranks", str(copy)]) == 0
    assert main(["report", str(copy)]) == 0
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
