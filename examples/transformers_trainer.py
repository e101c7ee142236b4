"""A Trainer of transformers: the callback records it, and its log has the peaks. So do TRL's."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from vramscope.integrations.transformers import VramscopeCallback

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(0, 100, (64, 48))
texts = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    "out",
    max_steps=12,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    logging_steps=4,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
callback = VramscopeCallback("traces/transformers", device="simulated", quiet=True)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=texts, callbacks=[callback])
trainer.train()

for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']}: {entry['vram/peak_allocated_bytes']:,} bytes at the peak")
(recording,) = callback.recording.recorder.load().recordings
print(f"{trainer.state.global_step} steps of the trainer, {len(recording.steps)} in the recording")
