"""Typical programs: attention written by hand, the demo's model, nanoGPT, and models of transformers.

Models that are not installed are left out; nanoGPT's ``model.py`` is expected in ``$NANOGPT``.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run(block: Callable[..., Any], is_checkpointed: bool, *inputs: Any) -> Any:
    return checkpoint(block, *inputs, use_reentrant=False) if is_checkpointed else block(*inputs)


class Attention(nn.Module):
    """The softmax and both products on one line of the program."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        return x + self.o((q @ k.transpose(-1, -2) * (1 / 16)).softmax(-1) @ v)


class Attentions(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 256)
        self.blocks = nn.ModuleList(Attention(256) for _ in range(4))
        self.head = nn.Linear(256, 500)
        self._is_checkpointed = is_checkpointed

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = run(block, self._is_checkpointed, x)
        return self.head(x)


def demo(is_checkpointed: bool) -> nn.Module:
    from vramscope.commands._demo_train import Gpt

    class Checkpointed(Gpt):
        def forward(self, text: Tensor) -> Tensor:
            x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
            for block in self.blocks:
                x = run(block, is_checkpointed, x)
            return self.head(x)

    return Checkpointed(256)


def nano_gpt(is_checkpointed: bool) -> nn.Module:
    path = Path(os.environ.get("NANOGPT", "")) / "model.py"
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    if spec is None or spec.loader is None or not path.exists():
        raise ModuleNotFoundError("nanoGPT: set NANOGPT to its checkout")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.GPTConfig(block_size=256, vocab_size=2048, n_layer=4, n_head=4, n_embd=256, dropout=0.1)
    model = module.GPT(config)
    if is_checkpointed:
        for block in model.transformer.h:
            forward = block.forward
            block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = model

        def forward(self, words: Tensor) -> Tensor:
            return self.gpt(words, words)[0]

    return Logits()


def of_transformers(config: str, model: str, is_checkpointed: bool, **options: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    if is_checkpointed:
        made.gradient_checkpointing_enable({"use_reentrant": False})

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made

        def forward(self, words: Tensor) -> Tensor:
            return self.inner(words).logits

    return Logits()


BERT = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    "vocab_size": 4000,
}  # fmt: skip


def bert(is_checkpointed: bool) -> nn.Module:
    return of_transformers("BertConfig", "BertForMaskedLM", is_checkpointed, **BERT)


def bert_by_hand(is_checkpointed: bool) -> nn.Module:
    options = {"attn_implementation": "eager"}
    return of_transformers("BertConfig", "BertForMaskedLM", is_checkpointed, **BERT, **options)


def gpt2(is_checkpointed: bool) -> nn.Module:
    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256}
    return of_transformers("GPT2Config", "GPT2LMHeadModel", is_checkpointed, vocab_size=4000, **sizes)


def words(n_words: int, length: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(n_words, (n, length), device="cuda")


KNOWN = {
    "attention by hand": (Attentions, words(500, 512), 12),
    "vramscope demo": (demo, words(256, 256), 12),
    "nanoGPT": (nano_gpt, words(2048, 256), 12),
    "transformers BERT": (bert, words(4000, 128), 24),
    "transformers BERT, eager": (bert_by_hand, words(4000, 256), 12),
    "transformers GPT-2": (gpt2, words(4000, 256), 12),
}
"""Programs by name: ``make(is_checkpointed)``, ``batch(n)``, and the n to use."""
