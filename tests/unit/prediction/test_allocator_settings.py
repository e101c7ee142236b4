"""What a program sets of the allocator, in a dry run: sizes by torch's rules for expandable segments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

MIB = 1 << 20
# Five blocks of 25 MiB are five segments of 26 MiB, or one that grows by pages of 20 MiB to 140.
BLOCKS = "kept = [torch.empty(25 << 20, dtype=torch.uint8, device='cuda') for _ in range(5)]\n"
ENVIRONMENT = "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
CALL = "torch.cuda.memory._set_allocator_settings('expandable_segments:True')\n"
SHARE = "torch.cuda.set_per_process_memory_fraction(0.5)\n"


def _predicted(tmp_path: Path, text: str) -> dict:
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-W", "ignore", "-m", "vramscope", "predict", "--json", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("text", "reserved_mib"),
    [
        ("import torch\n" + BLOCKS, 130),
        (ENVIRONMENT + "import torch\n" + BLOCKS, 140),
        ("import torch\n" + ENVIRONMENT + BLOCKS, 140),
        # Torch reads the environment at the first use of the card, and not again.
        ("import torch\ntorch.ones(1, device='cuda')\n" + ENVIRONMENT + BLOCKS, 132),
        ("import torch\n" + CALL + BLOCKS, 140),
        (ENVIRONMENT + "import torch\n" + CALL.replace("True", "False") + BLOCKS, 130),
    ],
)
def test_settings_count_from_where_the_program_makes_them(tmp_path: Path, text: str, reserved_mib: int):
    found = _predicted(tmp_path, text)

    assert (found["peak_reserved_bytes"], found["certainty"]) == (reserved_mib * MIB, "checked")


def test_a_share_of_the_card_makes_an_estimate(tmp_path: Path):
    found = _predicted(tmp_path, "import torch\n" + SHARE + BLOCKS)

    assert found["certainty"] == "estimate"
    assert "limits itself to 50 % of the card" in found["reasons"][0]
