"""A Trainer of transformers with our callback: its steps, its logs, its losses."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs transformers: make test-integrations")

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402

import vramscope  # noqa: E402
from vramscope.errors import UsageError  # noqa: E402
from vramscope.integrations.transformers import VramscopeCallback  # noqa: E402
from vramscope.model.recording import Outcome  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_tensors_only")]
CALLBACK = VramscopeCallback


class Texts(torch.utils.data.Dataset):
    """Texts of different lengths, so that steps differ; the same in every run."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index // 4)
        tokens = torch.randint(0, 100, (8 + index // 4 * 7 % 50,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class InOrder(Trainer):
    """Takes the texts in order: four of the same length after one another."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer_of(folder, callbacks, kind=InOrder, **options) -> Trainer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    defaults = {"max_steps": 12, "logging_steps": 2, "report_to": [], "save_strategy": "no"}
    options = {"per_device_train_batch_size": 2} | defaults | options
    arguments = TrainingArguments(
        str(folder / "out"),
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
        **options,
    )
    model = GPT2LMHeadModel(config)
    return kind(model, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks)


def losses(trainer) -> list:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_its_steps_are_the_trainers_and_its_logs_have_the_peaks_of_the_report(
    tmp_path, callback, recording_of
):
    trainer = trainer_of(tmp_path, [callback])
    trainer.train()
    recording = recording_of(callback)
    steps = recording.summary().steps
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]

    assert len(steps) == trainer.state.global_step == recording.process.total_steps == 12
    expected = [max(step.allocated_bytes for step in steps[at - 2 : at]) for at in range(2, 13, 2)]
    assert [entry["vram/peak_allocated_bytes"] for entry in logged] == expected
    assert len(set(expected)) > 3
    assert all(0 <= entry["vram/fragmentation"] < 1 for entry in logged)
    assert all(entry["vram/peak_reserved_bytes"] >= entry["vram/peak_allocated_bytes"] for entry in logged)


def test_without_the_callback_every_loss_is_the_same_bit_for_bit(tmp_path, callback):
    recorded = trainer_of(tmp_path, [callback])
    recorded.train()
    plain = trainer_of(tmp_path, [])
    plain.train()

    assert losses(recorded) == losses(plain)
    assert len(losses(plain)) == 6
    same = zip(recorded.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in same)


def test_tensorboard_which_the_trainer_calls_first_gets_the_scalars_too(tmp_path, callback, monkeypatch):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = trainer_of(tmp_path, [callback], report_to=["tensorboard"])
    trainer.train()
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    read = events.EventAccumulator(str(file))
    read.Reload()
    found = read.Scalars("train/vram/peak_allocated_bytes")
    logged = [entry for entry in trainer.state.log_history if "vram/peak_allocated_bytes" in entry]

    assert [(each.step, each.value) for each in found] == [
        (entry["step"], entry["vram/peak_allocated_bytes"]) for entry in logged
    ]


def test_evaluating_and_saving_are_phases_between_steps(tmp_path, callback, recording_of):
    trainer = trainer_of(
        tmp_path, [callback], eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=6
    )
    trainer.train()
    recording = recording_of(callback)
    names = [recording.phases.names[name] for name in recording.phases.name.tolist()]

    assert names.count("eval") == 3
    assert names.count("save") == 2
    assert len(recording.steps) == 12


@pytest.mark.parametrize("profiled", [(4, 8), (0, 2), (10, 99)])
def test_only_the_steps_of_the_window_are_recorded(tmp_path, profiled, recording_of):
    callback = VramscopeCallback(
        tmp_path / "run", profile_steps=profiled, device="simulated", quiet=True, stack_depth=8
    )
    trainer = trainer_of(tmp_path, [callback])
    trainer.train()
    first, end = profiled
    with_peak = [entry["step"] for entry in trainer.state.log_history if "vram/peak_allocated_bytes" in entry]

    assert len(recording_of(callback).steps) == min(end, 12) - first
    assert all(first < step <= end for step in with_peak)


def test_a_window_that_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="profile_steps"):
        VramscopeCallback(profile_steps=(20, 10))


@pytest.fixture
def warned():
    """What the logger of transformers received."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(f"{record.levelname} {record.getMessage()}")
    logger = logging.getLogger("transformers.vramscope")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_a_leak_is_a_warning_of_the_trainer(tmp_path, callback, warned):
    kept = []

    class Leaking(InOrder):
        def compute_loss(self, *arguments, **options):
            kept.append(super().compute_loss(*arguments, **options))
            return super().compute_loss(*arguments, **options)

    trainer_of(tmp_path, [callback], kind=Leaking, max_steps=40).train()

    leaks = [text for text in warned if "memory grows" in text]
    assert len(leaks) == 1
    assert leaks[0].startswith("WARNING vramscope: ")
    assert "kept" in leaks[0]


def test_the_cause_of_a_failed_allocation_is_a_warning_of_the_trainer(tmp_path, warned, recording_of):
    callback = VramscopeCallback(tmp_path / "run", device="simulated", capacity="2 MiB", quiet=True)
    trainer_of(tmp_path, [callback], per_device_train_batch_size=4, max_steps=4).train()
    (claim,) = [finding.claim for finding in recording_of(callback).findings() if finding.kind == "oom"][:1]

    assert sum(claim in text for text in warned) == 1


FAILING = """
import sys
sys.path.insert(0, {tests!r})
import torch
from test_transformers import InOrder, VramscopeCallback, trainer_of
from pathlib import Path

class Failing(InOrder):
    def training_step(self, *arguments, **options):
        if self.state.global_step == 2:
            kept = torch.ones(3 << 20)  # more than the device has
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().training_step(*arguments, **options)

folder = Path({folder!r})
callback = VramscopeCallback(folder / "run", device="simulated", capacity="8 MiB", quiet=True)
trainer_of(folder, [callback], kind=Failing, max_steps=4).train()
"""


def test_an_error_that_ends_the_program_is_its_outcome_and_its_cause_a_warning(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FAILING.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
    command = [sys.executable, script]
    quiet = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=quiet)
    run = vramscope.load(tmp_path / "run")
    claim = next(finding.claim for finding in run.recordings[0].findings() if finding.kind == "oom")

    assert done.stderr.count("torch.OutOfMemoryError: CUDA out of memory") == 1
    assert done.stderr.count(claim) == 1
    assert (run.outcome, run.error) == (Outcome.FAILED, "OutOfMemoryError: CUDA out of memory")


def test_the_hook_of_the_program_is_back_after_the_training(tmp_path, callback):
    before = sys.excepthook
    trainer_of(tmp_path, [callback], max_steps=2).train()

    assert sys.excepthook is before
