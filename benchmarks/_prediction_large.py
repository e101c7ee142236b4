"""Causal language models of about 7 B parameters as transformers has them, with random weights: three steps.

``vramscope predict _prediction_large.py NAME`` is what ``prediction.py --large only`` measures.
"""

import sys

import torch
from transformers import (
    AutoModelForCausalLM,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

CONFIGURATIONS = {
    "Llama-2-7B": lambda: LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    ),
    "Mistral-7B": lambda: MistralConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        sliding_window=None,
    ),
    "GPT-NeoX-6.9B": lambda: GPTNeoXConfig(
        hidden_size=4096,
        intermediate_size=16384,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=50432,
    ),
    "GPT-J-6B": lambda: GPTJConfig(n_embd=4096, n_layer=28, n_head=16, vocab_size=50400, rotary_dim=64),
    "Qwen2-7B": lambda: Qwen2Config(
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152064,
    ),
}


def main(name: str) -> None:
    config = CONFIGURATIONS[name]()
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(3):
        tokens = torch.randint(0, config.vocab_size, (1, 1024), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


if __name__ == "__main__":
    main(sys.argv[1])
