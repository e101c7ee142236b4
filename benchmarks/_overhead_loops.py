"""Small trainings with the trainers of libraries, as their documentation writes them.

python benchmarks/_overhead_loops.py trainer|accelerate|lightning FOLDER
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, LENGTH, WORDS = 4096, 32, 512


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences of words."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return a sequence, which is its own target."""
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, WORDS, (LENGTH,), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}


def trainer(folder: str) -> None:
    """Train a small GPT-2 with the Trainer of transformers, two batches accumulated."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4)
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=1000,
        logging_steps=10,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens()).train()


def accelerate(_: str) -> None:
    """Train a small BERT in a loop of accelerate, four batches accumulated."""
    from accelerate import Accelerator
    from transformers import BertConfig, BertForMaskedLM

    accelerator = Accelerator(gradient_accumulation_steps=4)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
    )
    model: Any = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Tokens(), batch_size=8, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _epoch in range(10):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()


def lightning(folder: str) -> None:
    """Train a small classifier with Lightning's Trainer."""
    from lightning import LightningModule, Trainer

    class Classifier(LightningModule):
        """Three linear layers over the mean of embedded words."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 128)
            self.layers = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
            self.head = nn.Linear(256, WORDS)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            """Predict the first word."""
            found = self.head(self.layers(self.words(batch["input_ids"]).mean(1)))
            return nn.functional.cross_entropy(found, batch["labels"][:, 0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Use Adam."""
            return torch.optim.Adam(self.parameters())

    Trainer(
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(Classifier(), DataLoader(Tokens(), batch_size=16))


if __name__ == "__main__":
    {"trainer": trainer, "accelerate": accelerate, "lightning": lightning}[sys.argv[1]](sys.argv[2])
