"""A trainer of TRL with the callback of transformers: what TRL builds on ``Trainer``, it records."""

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="needs TRL: make test-integrations")

from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402

from vramscope.integrations.transformers import VramscopeCallback  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_tensors_only")]
CALLBACK = VramscopeCallback


def trained(folder, callbacks):
    """A trainer that has fine-tuned a small model on texts of different lengths, the same in every run."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    words = {"<pad>": 0, "<end>": 1} | {f"word{number}": number for number in range(2, 100)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<end>")),
        pad_token="<pad>",
        eos_token="<end>",
        model_max_length=64,
    )
    texts = [[token % 90 + 2 for token in range(8 + row * 7 % 50)] for row in range(48)]
    trainer = trl.SFTTrainer(
        GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)),
        args=trl.SFTConfig(
            str(folder / "out"),
            max_steps=6,
            logging_steps=2,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            dataset_kwargs={"skip_prepare_dataset": True},
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"input_ids": texts}),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def test_its_steps_are_trls_and_its_logs_have_the_peaks_and_the_losses_stay(tmp_path, callback, recording_of):
    recorded = trained(tmp_path, [callback])
    plain = trained(tmp_path, [])
    steps = recording_of(callback).summary().steps
    logged = [entry for entry in recorded.state.log_history if "loss" in entry]

    assert len(steps) == recorded.state.global_step == 6
    assert [entry["vram/peak_allocated_bytes"] for entry in logged] == [
        max(step.allocated_bytes for step in steps[at - 2 : at]) for at in (2, 4, 6)
    ]
    assert [entry["loss"] for entry in logged] == [
        entry["loss"] for entry in plain.state.log_history if "loss" in entry
    ]
