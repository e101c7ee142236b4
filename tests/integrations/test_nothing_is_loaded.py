"""An import of vramscope, and a recording, load no framework that an integration is for."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
FRAMEWORKS = {
    "transformers",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "wandb",
    "mlflow",
    "tensorboard",
}
FRAMEWORKS |= {"prometheus_client", "opentelemetry", "mcp", "IPython", "ray", "anyio"}
FRAMEWORKS |= {"torchtitan"}
RECORD = """
import sys
import vramscope, torch
with vramscope.record(sys.argv[1], device="simulated", quiet=True) as recorder:
    recorder.take_peaks()
    torch.nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()
    recorder.take_peaks()
recorder.summaries()
print(*{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.parametrize(
    "code", ["import sys, vramscope; print(*sys.modules)", RECORD], ids=["import", "record"]
)
def test_no_framework_is_loaded(code, tmp_path):
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    loaded = set(done.stdout.split())

    assert "vramscope" in loaded
    assert loaded.isdisjoint(FRAMEWORKS)
